#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <span>

#include "checkpoint/local_range.h"
#include "shard/unit_state.h"

namespace fastsft {

// Reads pieces of a state in host memory. On the CPU they are the tensors' own memory, found
// without an ATen operator, unless the master is split; else copies, valid until the next call.
class HostValues {
 public:
  // The master weights of elements [begin, end) of the unit, which the state must hold.
  std::span<const float> master(const UnitState& state, const ElementRange& range);
  // The bytes of `range` of a flat tensor, one of the state's values.
  std::span<const std::byte> bytes(const at::Tensor& values, const ElementRange& range);

 private:
  at::Tensor held_;
};

// Calls work(piece) for pieces of `range` in their order, each a few MB large.
template <typename Work>
void for_pieces(const ElementRange& range, const Work& work) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  for (int64_t begin = range.begin; begin < range.end; begin += kPiece) {
    work(ElementRange{begin, std::min(begin + kPiece, range.end)});
  }
}

// Memory on the host for copies from and to `device`: page-locked when that is a GPU, since other
// memory is copied several times slower.
inline at::Tensor host_buffer(int64_t numel, at::Device device, at::ScalarType dtype) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).pinned_memory(!device.is_cpu()));
}

// What such a buffer takes: torch's page-locked allocator hands out powers of two.
inline int64_t host_buffer_bytes(int64_t bytes, at::Device device) {
  return device.is_cpu() || bytes == 0
             ? bytes
             : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

// The flat `tensor` on the host; itself when it is there already.
inline at::Tensor host_copy(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  at::Tensor copy = host_buffer(tensor.numel(), tensor.device(), tensor.scalar_type());
  copy.copy_(tensor);
  return copy;
}

}  // namespace fastsft
