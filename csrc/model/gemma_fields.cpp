#include "model/gemma_fields.h"

#include <cmath>

#include "model/layer_windows.h"

namespace fastsft {
namespace {

// Of both configuration classes; a null stays one.
const Json kDefaults = {
    {"num_key_value_heads", 4}, {"head_dim", 256},   {"query_pre_attn_scalar", 256},
    {"sliding_window", 4096},   {"pad_token_id", 0}, {"tie_word_embeddings", true}};

std::vector<int64_t> windows_by_pattern(int64_t num_layers, int64_t pattern, int64_t window) {
  std::vector<int64_t> windows;
  for (int64_t layer = 1; layer <= num_layers; ++layer) {
    windows.push_back(layer % pattern == 0 ? 0 : window);
  }
  return windows;
}

}  // namespace

Json with_gemma_defaults(const Json& json) {
  Json filled = json;
  for (const auto& [name, value] : kDefaults.items()) {
    if (!filled.contains(name)) filled[name] = value;
  }
  return filled;
}

double softcap_of(const ConfigFields& fields, const std::string& name) {
  return fields.has(name) ? fields.positive_number(name) : 0.0;
}

ModelConfig parse_gemma_fields(const Json& json, int64_t pattern) {
  Json read = json;
  read.erase("hidden_act");  // not Gemma's name for it, and not read by transformers
  const ConfigFields fields(read);
  fields.expect("hidden_activation", "gelu_pytorch_tanh");
  ModelConfig config = parse_decoder_fields(fields);
  const int64_t window = fields.positive("sliding_window");
  config.windows = fields.has("layer_types")
                       ? windows_of_types(fields, config.num_layers, window)
                       : windows_by_pattern(config.num_layers, pattern, window);
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  config.attention_scale = 1 / std::sqrt(fields.positive_number("query_pre_attn_scalar"));
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.norm_offset = 1;
  config.branch_norms = true;
  config.gelu = true;
  return config;
}

}  // namespace fastsft
