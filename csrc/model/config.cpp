#include "model/config.h"

#include <cmath>

#include "model/config_fields.h"

namespace fastsft {
namespace {

constexpr int64_t kMaxLayers = 100'000;

// Returns the padding token's embedding row, as transformers resolves padding_idx; a negative
// number counts from the end.
int64_t padding_row(const ConfigFields& fields, int64_t vocab_size) {
  if (!fields.has("pad_token_id")) return -1;
  const double given = fields.number_or("pad_token_id", -1);
  if (!(std::abs(given) < 1e9)) return -1;  // transformers has no such row
  const auto id = static_cast<int64_t>(given);
  return id < 0 ? id + vocab_size : id;
}

}  // namespace

double embedding_scale(const ModelConfig& config, c10::ScalarType dtype) {
  const auto scale = static_cast<float>(config.embedding_scale);
  if (dtype == c10::ScalarType::BFloat16) return static_cast<float>(c10::BFloat16(scale));
  if (dtype == c10::ScalarType::Half) return static_cast<float>(c10::Half(scale));
  return scale;
}

void cap_values(const at::Tensor& values, double softcap) {
  if (softcap > 0) values.div_(softcap).tanh_().mul_(softcap);
}

ModelConfig parse_decoder_fields(const ConfigFields& fields) {
  fields.refuse_null({"hidden_act", "rms_norm_eps"});
  fields.expect("hidden_act", "silu");
  ModelConfig config;
  config.vocab_size = fields.positive("vocab_size");
  config.hidden_size = fields.positive("hidden_size");
  config.intermediate_size = fields.positive("intermediate_size");
  config.num_layers = fields.positive("num_hidden_layers");
  config.num_heads = fields.positive("num_attention_heads");
  config.num_key_value_heads = fields.positive_or("num_key_value_heads", config.num_heads);
  config.head_dim = fields.positive_or("head_dim", config.hidden_size / config.num_heads);
  config.padding_idx = padding_row(fields, config.vocab_size);
  config.rms_norm_eps = fields.number_or("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.boolean_or("tie_word_embeddings", false);
  require(config.num_layers <= kMaxLayers, "config.json: \"num_hidden_layers\" is ",
          config.num_layers, ", expected at most ", kMaxLayers);
  require(config.num_heads % config.num_key_value_heads == 0, "config.json: ", config.num_heads,
          " attention heads are not a multiple of ", config.num_key_value_heads,
          " key/value heads");
  require(config.head_dim > 0 && config.head_dim % 2 == 0, "config.json: head_dim is ",
          config.head_dim, ", expected an even number");
  config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  config.rope = parse_rope(fields, config.head_dim);
  config.windows.assign(static_cast<size_t>(config.num_layers), 0);
  return config;
}

ModelConfig parse_model_config(const std::string& config_json) {
  const Json json = parse_json(config_json, "config.json");
  require(json.is_object() && json.contains("model_type") && json["model_type"].is_string(),
          "config.json: \"model_type\" is missing");
  const auto type = json["model_type"].get<std::string>();
  ModelConfig config = FamilyRegistry::instance().get(type).parse(json);
  config.model_type = type;
  return config;
}

}  // namespace fastsft
