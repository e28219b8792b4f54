#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <utility>

#include "shard/param_unit.h"

namespace fastsft {

// The whole gradient of a unit in one micro-batch. The first write of each tensor after `clear`
// uses beta = 0 and later writes use beta = 1, so nothing has to be set to zero before. The
// gradient is flat and float32. Optionally, the elements [0, linear_end) are instead the unit's
// bfloat16 sum over micro-batches, to which GEMMs add in float32 and round once.
class UnitGradient {
 public:
  UnitGradient() = default;
  // Sets the gaps between the unit's tensors to zero, because sums and norms include them.
  UnitGradient(const ParamUnit& unit, at::Tensor flat) : flat_(std::move(flat)) { zero_gaps(unit); }
  // `sum`: the linears' gradient, summed over micro-batches; its gaps are already zero. `filled`:
  // it contains earlier micro-batches.
  UnitGradient(const ParamUnit& unit, at::Tensor flat, at::Tensor sum, bool filled)
      : flat_(std::move(flat)),
        linears_(std::move(sum)),
        begin_(unit.linear_end()),
        filled_(filled) {
    zero_gaps(unit);
  }

  // Returns the float32 gradient of the unit's elements from `begin` on.
  const at::Tensor& flat() const { return flat_; }
  int64_t begin() const { return begin_; }
  at::Tensor range(int64_t offset, int64_t numel) const {
    if (offset < begin_) return linears_.narrow(0, offset, numel);
    return flat_.narrow(0, offset - begin_, numel);
  }
  // Returns the beta of a write at `offset` and marks the tensor as written: 0 for the first write,
  // 1 for later ones, which add. Call once per write.
  double begin_write(int64_t offset) {
    const bool first = written_.insert(offset).second;
    return first && !(filled_ && offset < begin_) ? 0.0 : 1.0;
  }
  void clear() { written_.clear(); }

 private:
  void zero_gaps(const ParamUnit& unit) {
    int64_t end = begin_;
    const auto zero = [&](int64_t to) {
      if (to > end) range(end, to - end).zero_();
    };
    for (const auto& slot : unit.slots()) {
      if (slot.offset < begin_) continue;
      zero(slot.offset);
      end = slot.offset + slot.numel();
    }
    zero(begin_ + flat_.numel());
  }

  at::Tensor flat_, linears_;
  int64_t begin_ = 0;
  bool filled_ = false;
  std::set<int64_t> written_;
};

}  // namespace fastsft
