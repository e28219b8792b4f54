#include <algorithm>

#include "model/config_fields.h"

namespace fastsft {
namespace {

// MistralConfig's defaults, where a key that is absent and one that is null differ.
constexpr int64_t kMistralKeyValueHeads = 8;
constexpr int64_t kMistralWindow = 4096;

ModelConfig parse_mistral(const Json& json) {
  Json filled = json;
  if (!json.contains("num_key_value_heads")) filled["num_key_value_heads"] = kMistralKeyValueHeads;
  if (!json.contains("sliding_window")) filled["sliding_window"] = kMistralWindow;
  const ConfigFields fields(filled);
  fields.expect("layer_types", Json());
  ModelConfig config = parse_decoder_fields(fields);
  std::ranges::fill(config.windows, fields.positive_or("sliding_window", 0));
  return config;
}

const bool kMistralRegistered =
    FamilyRegistry::instance().add("mistral", {parse_mistral, "Mistral"});

}  // namespace
}  // namespace fastsft
