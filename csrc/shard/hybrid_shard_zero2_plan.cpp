#include "shard/state_plan.h"

namespace fastsft {
namespace {

// shard_grad_op on the ranks of a node; the sums over the copies are formed in place.
StateBytes plan_hybrid_shard_zero2(const StateDescription& d) {
  return StatePlanRegistry::instance().get("shard_grad_op")(d.within_node());
}

const bool kHybridShardZero2PlanRegistered =
    StatePlanRegistry::instance().add("hybrid_shard_zero2", plan_hybrid_shard_zero2);

}  // namespace
}  // namespace fastsft
