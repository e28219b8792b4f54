#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <utility>

#include "shard/param_unit.h"

namespace fastsft {

// The whole flat gradient of a unit (float32), empty or partial: the first write of each tensor
// after `clear` has beta = 0, later ones beta = 1, so nothing has to be set to zero.
class UnitGradient {
 public:
  UnitGradient() = default;
  // Sets the gaps between the unit's tensors to zero: they are summed and normed with the rest.
  UnitGradient(const ParamUnit& unit, at::Tensor flat) : flat_(std::move(flat)) {
    int64_t end = 0;
    for (const auto& slot : unit.slots()) {
      if (slot.offset > end) flat_.narrow(0, end, slot.offset - end).zero_();
      end = slot.offset + slot.numel();
    }
    if (flat_.numel() > end) flat_.narrow(0, end, flat_.numel() - end).zero_();
  }

  const at::Tensor& flat() const { return flat_; }
  // How the next write at `offset` combines with what is there; call it once a write.
  double beta(int64_t offset) { return written_.insert(offset).second ? 0.0 : 1.0; }
  void clear() { written_.clear(); }

 private:
  at::Tensor flat_;
  std::set<int64_t> written_;
};

}  // namespace fastsft
