#include <utility>

#include "model/family_fields.h"

namespace fastsft {
namespace {

// Gemma3TextConfig's defaults, when the keys are absent.
constexpr int64_t kPattern = 6;
constexpr double kGlobalBase = 1e6;
constexpr double kLocalBase = 1e4;

// The two rotations as transformers 4 writes them, from transformers 5's "rope_parameters".
Json with_flat_rope(Json json) {
  const ConfigFields fields(json);
  if (!fields.has("rope_parameters")) {
    if (!json.contains("rope_theta")) json["rope_theta"] = kGlobalBase;
    if (!json.contains("rope_local_base_freq")) json["rope_local_base_freq"] = kLocalBase;
    return json;
  }
  const ConfigFields both = fields.object("rope_parameters");
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    require(both.has(kind), both.where(), ": \"", kind,
            "\" is missing, expected a rotation for each kind of layer");
  }
  const ConfigFields local = both.object("sliding_attention");
  local.expect("rope_type", "default");
  // Both are read first: a new key moves the others.
  const double local_base = local.number_or("rope_theta", kLocalBase);
  Json global = both.object("full_attention").json();
  json["rope_local_base_freq"] = local_base;
  json["rope_theta"] = kGlobalBase;
  json["rope_scaling"] = std::move(global);
  json.erase("rope_parameters");
  return json;
}

ModelConfig parse_gemma3(const Json& json) {
  const Json filled = with_flat_rope(with_gemma_defaults(json));
  const ConfigFields fields(filled);
  // transformers does not read the first, and would see the future with the second.
  fields.expect("attn_logit_softcapping", Json());
  fields.expect("use_bidirectional_attention", false);
  const auto pattern = static_cast<int64_t>(fields.positive_or("sliding_window_pattern", kPattern));
  ModelConfig config = parse_gemma_fields(filled, pattern);
  config.qk_norm = true;
  config.logit_softcap = softcap_of(fields, "final_logit_softcapping");
  Json local = filled;
  local["rope_theta"] = fields.positive_number("rope_local_base_freq");
  local.erase("rope_scaling");
  config.local_rope = parse_rope(ConfigFields(local), config.head_dim);
  return config;
}

const bool kGemma3Registered =
    FamilyRegistry::instance().add("gemma3_text", {parse_gemma3, "Gemma3"});

}  // namespace
}  // namespace fastsft
