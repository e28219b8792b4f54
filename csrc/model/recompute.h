#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/config.h"

namespace fastsft {

// The activations that backward recomputes, from the most memory to the most time: none; the norms
// and the SwiGLU product; also the gate and up projections; the whole block from its input. The
// choice never changes the numbers.
enum class Recompute { kNone, kSelective, kGateUp, kBlock };

// Returns all policy names, in enum order.
inline std::vector<std::string> recompute_policies() {
  return {"none", "selective", "gate_up", "block"};
}

// Throws std::invalid_argument for an unknown name.
inline Recompute parse_recompute(const std::string& name) {
  const auto names = recompute_policies();
  const auto at = std::find(names.begin(), names.end(), name);
  require(at != names.end(), "unknown recompute policy \"", name,
          "\"; known: none, selective, gate_up, block");
  return static_cast<Recompute>(at - names.begin());
}

// Throws std::invalid_argument if blocks' inputs are to wait on the host, but other activations
// stay on the device.
inline void check_offloaded_inputs(Recompute recompute, bool offload_inputs) {
  require(!offload_inputs || recompute == Recompute::kBlock,
          "offload_inputs is True, and recompute \"",
          recompute_policies()[static_cast<size_t>(recompute)],
          "\" keeps more than the inputs of blocks; use recompute block with it");
}

// Throws std::invalid_argument for a mixture of experts, which groups a micro-batch's rows by
// expert.
inline void check_tiles(const ModelConfig& config, int64_t tile_tokens) {
  require(tile_tokens == 0 || !config.is_mixture(), "tile_tokens is ", tile_tokens,
          ", and a mixture of experts computes all tokens of a micro-batch at once; leave it out");
}

}  // namespace fastsft
