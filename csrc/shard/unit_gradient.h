#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <utility>

#include "shard/param_unit.h"

namespace fastsft {

// The gathered gradient of a unit in one micro-batch. The first write of each tensor after `clear`
// has beta = 0, later ones beta = 1, so nothing has to be set to zero. All of it is float32 and
// flat; or elements [0, linear_end) are the unit's sum over micro-batches itself, in bfloat16, to
// which GEMMs add in float32 and round once.
class UnitGradient {
 public:
  UnitGradient() = default;
  // Sets the gaps between the unit's tensors to zero, because they are part of sums and norms.
  UnitGradient(const ParamUnit& unit, at::Tensor flat) : flat_(std::move(flat)) { zero_gaps(unit); }
  // `sum`: of the linears, whose gaps are zero; `filled`: with the micro-batches before this one.
  UnitGradient(const ParamUnit& unit, at::Tensor flat, at::Tensor sum, bool filled)
      : flat_(std::move(flat)),
        linears_(std::move(sum)),
        begin_(unit.linear_end()),
        filled_(filled) {
    zero_gaps(unit);
  }

  // In float32: the unit from `begin` on.
  const at::Tensor& flat() const { return flat_; }
  int64_t begin() const { return begin_; }
  at::Tensor range(int64_t offset, int64_t numel) const {
    if (offset < begin_) return linears_.narrow(0, offset, numel);
    return flat_.narrow(0, offset - begin_, numel);
  }
  // Returns the beta of a write at `offset` and marks it as written: 0 for the first write, 1 for
  // those that add to it. Call once per write.
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
