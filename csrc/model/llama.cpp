#include "model/config_fields.h"

namespace fastsft {
namespace {

ModelConfig parse_llama(const Json& json) {
  const ConfigFields fields(json);
  ModelConfig config = parse_decoder_fields(fields);
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  config.mlp_bias = fields.boolean_or("mlp_bias", false);
  return config;
}

const bool kLlamaRegistered = FamilyRegistry::instance().add("llama", {parse_llama, "Llama"});

}  // namespace
}  // namespace fastsft
