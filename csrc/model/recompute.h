#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"

namespace fastsft {

// What backward computes again, from the most memory to the most time: nothing; norms
// and the SwiGLU product; also the gate and up projections; or the whole block from its input. It
// never changes the numbers.
enum class Recompute { kNone, kSelective, kGateUp, kBlock };

// All of them in that order.
inline std::vector<std::string> recompute_policies() {
  return {"none", "selective", "gate_up", "block"};
}

// std::invalid_argument for another name.
inline Recompute parse_recompute(const std::string& name) {
  const auto names = recompute_policies();
  const auto at = std::find(names.begin(), names.end(), name);
  require(at != names.end(), "unknown recompute policy \"", name,
          "\"; known: none, selective, gate_up, block");
  return static_cast<Recompute>(at - names.begin());
}

}  // namespace fastsft
