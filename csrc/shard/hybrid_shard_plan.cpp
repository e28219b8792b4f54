#include "shard/state_plan.h"

namespace fastsft {
namespace {

// full_shard on the ranks of a node; the sums over the copies are formed in place.
StateBytes plan_hybrid_shard(const StateDescription& d) {
  return StatePlanRegistry::instance().get("full_shard")(d.within_node());
}

const bool kHybridShardPlanRegistered =
    StatePlanRegistry::instance().add("hybrid_shard", plan_hybrid_shard);

}  // namespace
}  // namespace fastsft
