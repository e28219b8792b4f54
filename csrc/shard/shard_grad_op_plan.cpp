#include <algorithm>

#include "shard/state_plan.h"

namespace fastsft {
namespace {

// Parameters whole; gradients by ranges beside two whole ones in float32, the range under
// reduction, and after the update one gather at a time.
StateBytes plan(const StateDescription& d) {
  const int64_t size = d.total(), largest = d.largest(0), range = size / d.world_size;
  const auto open = static_cast<int64_t>(2 + d.resident_units);
  const int64_t clone = d.cloned ? 1 : 0;
  return {.parameters = size * d.itemsize,
          .gradients = 4 * (range + open * largest + largest / d.world_size),
          .optimizer = (d.narrow() ? 12 : 8) * range,
          .largest_range = largest / d.world_size,
          .clones_in_blocks = clone * 4 * d.largest(1),
          .clones_between = clone * std::max(4 * d.padded(0), d.itemsize * largest)};
}

const bool registered = StatePlanRegistry::instance().add("shard_grad_op", plan);

}  // namespace
}  // namespace fastsft
