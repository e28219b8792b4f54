#include "shard/shard_grad_op.h"

namespace fastsft {
namespace {

// shard_grad_op inside every node, a copy on each; otherwise as hybrid_shard.
std::unique_ptr<Strategy> make_hybrid_shard_zero2(const StrategyContext& context) {
  return std::make_unique<ShardGradOp>(context, context.groups.over_node());
}

StateBytes plan_hybrid_shard_zero2(const StateDescription& description) {
  return plan_shard_grad_op(description.within_node());
}

const bool kHybridShardZero2Registered = StrategyRegistry::instance().add(
    "hybrid_shard_zero2",
    {make_hybrid_shard_zero2, plan_hybrid_shard_zero2, /*within_nodes=*/true});

}  // namespace
}  // namespace fastsft
