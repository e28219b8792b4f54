#include "train/native_model.h"

#include <algorithm>

#include "model/causal_lm.h"

namespace fastsft {
namespace {

// The rope tables grow on demand; a long limit that no conversation reaches should cost nothing.
int64_t first_positions(int64_t longest) {
  constexpr int64_t kMost = 4096;
  return longest > 0 ? std::min(longest, kMost) : kMost;
}

}  // namespace

std::unique_ptr<Model> native_model(const std::string& config_json, const EngineOptions& options) {
  return std::make_unique<CausalLM>(
      parse_model_config(config_json), options.adapters, options.state.compute_dtype,
      options.device, parse_recompute(options.recompute), first_positions(options.max_positions));
}

}  // namespace fastsft
