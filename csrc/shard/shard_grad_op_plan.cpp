#include "shard/state_plan.h"

#include <algorithm>

namespace fastsft {
namespace {

// Parameters whole; gradients by ranges next to whole ones in float32, and after the update one
// gather at a time.
StateBytes plan_shard_grad_op(const StateDescription& d) {
  const int64_t clone = d.clones() ? 1 : 0;
  StateBytes bytes{.parameters = d.total() * d.itemsize,
                   .gradients = d.reduced_gradients(),
                   .clones_in_blocks = clone * 4 * d.largest(1),
                   .clones_between = clone * std::max(4 * d.padded(0), d.itemsize * d.largest(0))};
  bytes.clones_between = std::max(bytes.clones_between, d.widened_sums());
  plan_optimizer(d, bytes);
  return bytes;
}

const bool kShardGradOpPlanRegistered =
    StatePlanRegistry::instance().add("shard_grad_op", plan_shard_grad_op);

}  // namespace
}  // namespace fastsft
