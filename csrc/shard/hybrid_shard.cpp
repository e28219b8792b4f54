#include "shard/full_shard.h"

namespace fastsft {
namespace {

// full_shard inside every node, a copy on each: units are gathered and reduced over a node's ranks,
// and once a step the gradient ranges are summed over the nodes. Equal ranges with equal gradients
// and state stay equal to the bit, so nothing else is exchanged between nodes.
const bool kHybridShardRegistered = StrategyRegistry::instance().add(
    "hybrid_shard",
    {.make = make_over_node<FullShard>,
     .plan = [](const StateDescription& d) { return plan_full_shard(d.within_node()); },
     .within_nodes = true});

}  // namespace
}  // namespace fastsft
