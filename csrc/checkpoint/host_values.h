#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
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

}  // namespace fastsft
