#include "shard/full_shard.h"

namespace fastsft {
namespace {

// full_shard inside every node, a copy on each: units are gathered and reduced over a node's ranks,
// and once a step the gradient ranges are summed over the nodes. Equal ranges with equal gradients
// and state stay equal to the bit, so nothing else is exchanged between nodes.
std::unique_ptr<Strategy> make_hybrid_shard(const StrategyContext& context) {
  return std::make_unique<FullShard>(context, context.groups.over_node());
}

StateBytes plan_hybrid_shard(const StateDescription& description) {
  return plan_full_shard(description.within_node());
}

const bool kHybridShardRegistered = StrategyRegistry::instance().add(
    "hybrid_shard", {make_hybrid_shard, plan_hybrid_shard, /*within_nodes=*/true});

}  // namespace
}  // namespace fastsft
