#include "shard/state_plan.h"

namespace fastsft {
namespace {

// Everything on every rank. float32 gradients are reduced in place; bfloat16 ones after every
// micro-batch, through whole units in float32.
StateBytes plan_no_shard(const StateDescription& d) {
  StateDescription alone = d;
  alone.world_size = 1;  // units are padded for one rank
  const int64_t size = alone.total();
  StateBytes bytes{.parameters = size * d.itemsize,
                   .gradients = d.grad_itemsize < 4 ? alone.reduced_gradients() : 4 * size,
                   .clones_between = alone.widened_sums()};
  plan_optimizer(alone, bytes);
  return bytes;
}

const bool kNoShardPlanRegistered = StatePlanRegistry::instance().add("no_shard", plan_no_shard);

}  // namespace
}  // namespace fastsft
