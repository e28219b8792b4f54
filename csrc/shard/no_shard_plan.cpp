#include <algorithm>

#include "shard/state_plan.h"

namespace fastsft {
namespace {

// Everything on every rank; gradients are reduced in place.
StateBytes plan(const StateDescription& d) {
  int64_t size = 0, largest = 0;  // padded for one rank
  for (const auto& unit : d.units) {
    size += unit.padded_numel(1);
    largest = std::max(largest, unit.padded_numel(1));
  }
  return {.parameters = size * d.itemsize,
          .gradients = 4 * size,
          .optimizer = (d.narrow() ? 12 : 8) * size,
          .largest_range = largest};
}

const bool registered = StatePlanRegistry::instance().add("no_shard", plan);

}  // namespace
}  // namespace fastsft
