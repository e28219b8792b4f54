#include "shard/state_plan.h"

#include <algorithm>

namespace fastsft {

int64_t StateDescription::total() const {
  int64_t sum = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) sum += padded(unit);
  return sum;
}

int64_t StateDescription::largest(size_t first_unit) const {
  int64_t most = 0;
  for (size_t unit = first_unit; unit < units.size(); ++unit) most = std::max(most, padded(unit));
  return most;
}

StateDescription StateDescription::within_node() const {
  StateDescription node = *this;
  if (node_size > 0) node.world_size = node_size;
  node.cloned = cloned && node.world_size > 1;
  return node;
}

namespace {

// Two slots of the largest range (shard/staged_states.h).
void offload_optimizer(StateBytes& bytes, bool narrow) {
  bytes.offloaded = bytes.optimizer;
  bytes.optimizer = 2 * (narrow ? 12 : 8) * bytes.largest_range;
}

}  // namespace

StateBytes plan_state(const std::string& strategy, const StateDescription& description) {
  const auto& plan = StatePlanRegistry::instance().get(strategy);
  StateBytes bytes = description.world_size > 1
                         ? plan(description)
                         : StatePlanRegistry::instance().get("no_shard")(description);
  if (description.offload) offload_optimizer(bytes, description.narrow());
  return bytes;
}

}  // namespace fastsft
