#include <algorithm>

#include "shard/state_plan.h"

namespace fastsft {
namespace {

// Everything by ranges; whole units only in buffers: of parameters the one computed and its
// neighbour, of gradients the one written and the one reduced. A block's reduction runs beside the
// gather of the block after the next; that of the embedding beside the next micro-batch's gather.
StateBytes plan(const StateDescription& d) {
  const int64_t range = d.total() / d.world_size, largest = d.largest(0);
  const auto open = static_cast<int64_t>(2 + d.resident_units);
  const int64_t clone = d.cloned ? 1 : 0, embedding = d.padded(0);
  return {.parameters = range * d.itemsize,
          .gradients = 4 * (range + open * largest + largest / d.world_size),
          .optimizer = (d.narrow() ? 12 : 8) * range,
          .largest_range = largest / d.world_size,
          .buffers = d.itemsize * open * largest,
          .clones_in_blocks = clone * (4 * d.largest(1) + d.itemsize * d.padded(1)),
          .clones_between = clone * embedding * (d.accumulates ? 4 + d.itemsize : 4)};
}

const bool registered = StatePlanRegistry::instance().add("full_shard", plan);

}  // namespace
}  // namespace fastsft
