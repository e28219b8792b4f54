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

StateBytes plan_state(const std::string& strategy, const StateDescription& description) {
  const auto& plan = StatePlanRegistry::instance().get(strategy);
  if (description.world_size > 1) return plan(description);
  return StatePlanRegistry::instance().get("no_shard")(description);
}

}  // namespace fastsft
