#include "model/recompute.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {

std::vector<std::string> recompute_policies() { return {"none", "selective", "gate_up", "block"}; }

Recompute parse_recompute(const std::string& name) {
  const auto names = recompute_policies();
  const auto at = std::find(names.begin(), names.end(), name);
  require(at != names.end(), "unknown recompute policy \"", name,
          "\"; known: none, selective, gate_up, block");
  return static_cast<Recompute>(at - names.begin());
}

}  // namespace fastsft
