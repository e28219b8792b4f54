#include "model/family_fields.h"

namespace fastsft {
namespace {

// Gemma2Config's defaults, when the keys are absent; a null is no cap.
constexpr double kAttentionCap = 50;
constexpr double kLogitCap = 30;

ModelConfig parse_gemma2(const Json& json) {
  Json filled = with_gemma_defaults(json);
  if (!json.contains("attn_logit_softcapping")) filled["attn_logit_softcapping"] = kAttentionCap;
  if (!json.contains("final_logit_softcapping")) filled["final_logit_softcapping"] = kLogitCap;
  const ConfigFields fields(filled);
  ModelConfig config = parse_gemma_fields(filled, /*pattern=*/2);
  config.attention_softcap = softcap_of(fields, "attn_logit_softcapping");
  config.logit_softcap = softcap_of(fields, "final_logit_softcapping");
  config.scales_noise = true;
  return config;
}

const bool kGemma2Registered = FamilyRegistry::instance().add("gemma2", {parse_gemma2, "Gemma2"});

}  // namespace
}  // namespace fastsft
