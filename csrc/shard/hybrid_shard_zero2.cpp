#include "shard/shard_grad_op.h"

namespace fastsft {
namespace {

// shard_grad_op inside every node, a copy on each; otherwise as hybrid_shard.
const bool kHybridShardZero2Registered =
    StrategyRegistry::instance().add("hybrid_shard_zero2", [](const StrategyContext& context) {
      return std::make_unique<ShardGradOp>(context, context.groups.over_node());
    });

}  // namespace
}  // namespace fastsft
