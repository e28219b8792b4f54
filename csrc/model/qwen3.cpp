#include "model/family_fields.h"

namespace fastsft {
namespace {

// Qwen3Config's defaults, when the keys are absent.
constexpr int64_t kQwen3KeyValueHeads = 32;
constexpr int64_t kDefaultHeadDim = 128;

ModelConfig parse_qwen3(const Json& json) {
  Json filled = json;
  if (!json.contains("num_key_value_heads")) filled["num_key_value_heads"] = kQwen3KeyValueHeads;
  if (!json.contains("head_dim")) filled["head_dim"] = kDefaultHeadDim;
  const ConfigFields fields(filled);
  ModelConfig config = parse_decoder_fields(fields);
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  config.qk_norm = true;
  config.windows = parse_layer_windows(fields, config.num_layers);
  return config;
}

const bool kQwen3Registered = FamilyRegistry::instance().add("qwen3", {parse_qwen3, "Qwen3"});

}  // namespace
}  // namespace fastsft
