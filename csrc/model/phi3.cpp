#include <algorithm>

#include "model/config_fields.h"

namespace fastsft {
namespace {

// Phi3Config's defaults of keys that are absent.
const Json& defaults() {
  static const Json values = {{"rms_norm_eps", 1e-5},
                              {"pad_token_id", 32000},
                              {"max_position_embeddings", 4096},
                              {"original_max_position_embeddings", 4096}};
  return values;
}

// Phi3Config takes "su" and "yarn" for longrope, whose names they were.
void rename_scaling(Json& json) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    if (!json.contains(field) || !json[field].is_object()) continue;
    Json& settings = json[field];
    for (const char* key : {"type", "rope_type"}) {
      if (!settings.contains(key)) continue;
      if (settings[key] == "su" || settings[key] == "yarn") settings[key] = "longrope";
    }
  }
}

ModelConfig parse_phi3(const Json& json) {
  Json filled = defaults();
  filled.update(json);
  rename_scaling(filled);
  const ConfigFields fields(filled);
  fields.expect("layer_types", Json());
  ModelConfig config = parse_decoder_fields(fields);
  config.fused_projections = true;
  std::ranges::fill(config.windows, fields.positive_or("sliding_window", 0));
  return config;
}

const bool kPhi3Registered = FamilyRegistry::instance().add("phi3", {parse_phi3, "Phi3"});

}  // namespace
}  // namespace fastsft
