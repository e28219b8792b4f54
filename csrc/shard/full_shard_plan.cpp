#include <algorithm>

#include "shard/state_plan.h"

namespace fastsft {
namespace {

// Everything by ranges; whole units only in buffers: of parameters the one computed and its
// neighbour, of gradients the one written and the one reduced. A block's reduction runs during the
// gather of the block after the next; that of the embedding during the next micro-batch's gather.
StateBytes plan_full_shard(const StateDescription& d) {
  const int64_t range = d.total() / d.world_size, embedding = d.padded(0);
  const auto open = static_cast<int64_t>(2 + d.resident_units);
  const int64_t clone = d.clones() ? 1 : 0;
  StateBytes bytes{.parameters = range * d.itemsize,
                   .gradients = d.reduced_gradients(),
                   .buffers = d.itemsize * open * d.largest(0),
                   .clones_in_blocks = clone * (4 * d.largest(1) + d.itemsize * d.padded(1)),
                   .clones_between = clone * embedding * (d.accumulates ? 4 + d.itemsize : 4)};
  bytes.clones_between = std::max(bytes.clones_between, d.widened_sums());
  plan_optimizer(d, bytes);
  return bytes;
}

const bool kFullShardPlanRegistered =
    StatePlanRegistry::instance().add("full_shard", plan_full_shard);

}  // namespace
}  // namespace fastsft
