#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "shard/strategy.h"

namespace fastsft {

// Elements of a unit's range that an update treats alike, as views.
struct UpdateRange {
  at::Tensor master;               // UnitState
  std::optional<at::Tensor> copy;  // the compute range next to it
  at::Tensor grad;
  std::vector<at::Tensor> values;  // of the optimizer; whole ones are whole
  int64_t first = 0;               // number of the first element in the whole model
  bool decays = false;
};

// Of elements `part` of the unit, which the state holds.
UpdateRange range_of(Strategy& strategy, size_t unit, const UnitState& state,
                     const ElementRange& part);

// Calls `work` for the ranges of all units with and without weight decay, between begin_update and
// end_update of each; collective.
void update_ranges(Strategy& strategy, const std::function<void(const UpdateRange&)>& work);

}  // namespace fastsft
