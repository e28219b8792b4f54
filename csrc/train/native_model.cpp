#include "train/native_model.h"

#include "model/causal_lm.h"

namespace fastsft {

std::unique_ptr<Model> native_model(const std::string& config_json, const EngineOptions& options) {
  return std::make_unique<CausalLM>(parse_model_config(config_json), options.adapters,
                                    options.state.compute_dtype, options.device,
                                    parse_recompute(options.recompute), options.max_positions);
}

}  // namespace fastsft
