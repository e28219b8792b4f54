#include "shard/shard_grad_op.h"

namespace fastsft {
namespace {

// shard_grad_op inside every node, a copy on each; otherwise as hybrid_shard.
const bool kHybridShardZero2Registered = StrategyRegistry::instance().add(
    "hybrid_shard_zero2",
    {.make = make_over_node<ShardGradOp>,
     .plan = [](const StateDescription& d) { return plan_shard_grad_op(d.within_node()); },
     .within_nodes = true});

}  // namespace
}  // namespace fastsft
