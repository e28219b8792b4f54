#include "model/config_fields.h"

namespace fastsft {
namespace {

ModelConfig parse_llama(const Json& json) {
  const ConfigFields fields(json);
  fields.expect("hidden_act", "silu");
  fields.expect("attention_bias", false);
  fields.expect("mlp_bias", false);
  ModelConfig config = parse_decoder_fields(fields);
  parse_rope(fields, config);
  return config;
}

const bool registered = FamilyRegistry::instance().add("llama", parse_llama);

}  // namespace
}  // namespace fastsft
