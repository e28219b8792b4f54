#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <span>

#include "checkpoint/local_range.h"
#include "shard/unit_state.h"

namespace fastsft {

// Reads ranges of a unit's state into host memory. On the CPU the returned spans refer to the
// tensors' own memory, without calling an ATen operator, unless the master is split. Otherwise they
// refer to a copy that is valid until the next call.
class HostValues {
 public:
  // Returns the unit's master weights in `range`, which the state must hold.
  std::span<const float> master(const UnitState& state, const ElementRange& range);
  // Returns the bytes of an element range. `values`: a flat tensor in the state.
  std::span<const std::byte> bytes(const at::Tensor& values, const ElementRange& range);

 private:
  at::Tensor held_;
};

// Calls work(piece) for successive pieces of `range`, each a few megabytes large.
template <typename Work>
void for_pieces(const ElementRange& range, const Work& work) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  for (int64_t begin = range.begin; begin < range.end; begin += kPiece) {
    work(ElementRange{begin, std::min(begin + kPiece, range.end)});
  }
}

// Allocates a host tensor for copies from and to `device`. For a GPU the memory is page-locked,
// because other memory is copied several times slower.
inline at::Tensor host_buffer(int64_t numel, at::Device device, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).pinned_memory(!device.is_cpu()));
}

// Returns the bytes that host_buffer really allocates: torch's page-locked allocator rounds up to
// powers of two.
inline int64_t host_buffer_bytes(int64_t bytes, at::Device device) {
  return device.is_cpu() || bytes == 0
             ? bytes
             : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

// Returns the flat `tensor` in host memory; `tensor` itself if it is there already.
inline at::Tensor host_copy(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  at::Tensor copy = host_buffer(tensor.numel(), tensor.device(), tensor.scalar_type());
  copy.copy_(tensor);
  return copy;
}

}  // namespace fastsft
