#include "model/family_fields.h"

namespace fastsft {
namespace {

constexpr int64_t kQwen2KeyValueHeads = 32;  // Qwen2Config's, when the key is absent

ModelConfig parse_qwen2(const Json& json) {
  Json filled = json;
  if (!json.contains("num_key_value_heads")) filled["num_key_value_heads"] = kQwen2KeyValueHeads;
  const ConfigFields fields(filled);
  ModelConfig config = parse_decoder_fields(fields);
  config.qkv_bias = true;
  config.windows = parse_layer_windows(fields, config.num_layers);
  return config;
}

const bool kQwen2Registered = FamilyRegistry::instance().add("qwen2", {parse_qwen2, "Qwen2"});

}  // namespace
}  // namespace fastsft
