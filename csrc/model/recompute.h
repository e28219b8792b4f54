#pragma once

#include <string>
#include <vector>

namespace fastsft {

// What backward computes again, from the most memory to the most time: nothing; norms
// and the SwiGLU product; also the gate and up projections; or the whole block from its input. It
// never changes the numbers.
enum class Recompute { kNone, kSelective, kGateUp, kBlock };

// "none", "selective", "gate_up", "block"; std::invalid_argument otherwise.
Recompute parse_recompute(const std::string& name);

// All of them in that order.
std::vector<std::string> recompute_policies();

}  // namespace fastsft
