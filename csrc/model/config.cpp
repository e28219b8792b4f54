#include "model/config.h"

#include "model/config_fields.h"

namespace fastsft {

int64_t ConfigFields::positive(const std::string& field) const {
  require(has(field), "config.json: \"", field, "\" is missing");
  require(json_[field].is_number_integer() && json_[field].get<int64_t>() > 0, "config.json: \"",
          field, "\" is ", json_[field].dump(), ", expected a positive integer");
  return json_[field].get<int64_t>();
}

int64_t ConfigFields::positive_or(const std::string& field, int64_t fallback) const {
  return has(field) ? positive(field) : fallback;
}

double ConfigFields::number_or(const std::string& field, double fallback) const {
  if (!has(field)) return fallback;
  require(json_[field].is_number(), "config.json: \"", field, "\" is ", json_[field].dump(),
          ", expected a number");
  return json_[field].get<double>();
}

bool ConfigFields::boolean_or(const std::string& field, bool fallback) const {
  if (!has(field)) return fallback;
  require(json_[field].is_boolean(), "config.json: \"", field, "\" is ", json_[field].dump(),
          ", expected true or false");
  return json_[field].get<bool>();
}

std::string ConfigFields::text_or(const std::string& field, const std::string& fallback) const {
  if (!has(field)) return fallback;
  require(json_[field].is_string(), "config.json: \"", field, "\" is ", json_[field].dump(),
          ", expected a text");
  return json_[field].get<std::string>();
}

void ConfigFields::expect(const std::string& field, const Json& expected) const {
  require(!has(field) || json_[field] == expected, "config.json: \"", field, "\" is ",
          json_.value(field, Json()).dump(), "; this model family is built for ", expected.dump());
}

ModelConfig parse_decoder_fields(const ConfigFields& fields) {
  ModelConfig config;
  config.vocab_size = fields.positive("vocab_size");
  config.hidden_size = fields.positive("hidden_size");
  config.intermediate_size = fields.positive("intermediate_size");
  config.num_layers = fields.positive("num_hidden_layers");
  config.num_heads = fields.positive("num_attention_heads");
  config.num_key_value_heads = fields.positive_or("num_key_value_heads", config.num_heads);
  config.head_dim = fields.positive_or("head_dim", config.hidden_size / config.num_heads);
  config.rms_norm_eps = fields.number_or("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.boolean_or("tie_word_embeddings", false);
  require(config.num_heads % config.num_key_value_heads == 0, "config.json: ", config.num_heads,
          " attention heads are not a multiple of ", config.num_key_value_heads,
          " key/value heads");
  require(config.head_dim % 2 == 0, "config.json: head_dim is ", config.head_dim,
          ", expected an even number");
  return config;
}

void parse_rope(const ConfigFields& fields, ModelConfig& config) {
  config.rope_theta = fields.number_or("rope_theta", 10000.0);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    if (!fields.has(field)) continue;
    const Json& scaling = fields.json()[field];
    require(scaling.is_object(), "config.json: \"", field, "\" is ", scaling.dump(),
            ", expected an object");
    const ConfigFields settings(scaling);  // "type" is the old spelling of "rope_type"
    const std::string type = settings.text_or("rope_type", settings.text_or("type", "default"));
    require(type == "default" || type == "linear", "config.json: \"", field, "\" has type \"", type,
            "\"; supported: default, linear");
    config.rope_theta = settings.number_or("rope_theta", config.rope_theta);
    if (type == "linear") config.rope_linear_factor = settings.number_or("factor", 0.0);
    require(config.rope_linear_factor > 0, "config.json: linear \"", field,
            "\" needs a positive factor");
  }
}

ModelConfig parse_model_config(const std::string& config_json) {
  const Json json = parse_json(config_json, "config.json");
  require(json.is_object() && json.contains("model_type") && json["model_type"].is_string(),
          "config.json: \"model_type\" is missing");
  const auto type = json["model_type"].get<std::string>();
  ModelConfig config = FamilyRegistry::instance().get(type)(json);
  config.model_type = type;
  return config;
}

}  // namespace fastsft
