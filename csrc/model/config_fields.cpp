#include "model/config_fields.h"

#include <cmath>

namespace fastsft {
namespace {

constexpr double kMaxSize = 2147483647;  // the product of two sizes must fit an int64

}  // namespace

void ConfigFields::refuse(const std::string& field, const char* expected) const {
  throw_invalid(where_, ": \"", field, "\" is ", json_[field].dump(), ", expected ", expected);
}

int64_t ConfigFields::positive(const std::string& field) const {
  require(has(field), where_, ": \"", field, "\" is missing");
  const Json& value = json_[field];
  const double number = value.is_number_integer() ? value.get<double>() : 0;
  if (!(number >= 1 && number <= kMaxSize)) refuse(field, "a positive integer below 2^31");
  return value.get<int64_t>();
}

int64_t ConfigFields::positive_or(const std::string& field, int64_t fallback) const {
  return has(field) ? positive(field) : fallback;
}

double ConfigFields::positive_number(const std::string& field) const {
  require(has(field), where_, ": \"", field, "\" is missing");
  const double value = number_or(field, 0);
  if (!(value > 0)) refuse(field, "a positive number");
  return value;
}

double ConfigFields::number_or(const std::string& field, double fallback) const {
  if (!has(field)) return fallback;
  if (!json_[field].is_number()) refuse(field, "a number");
  return json_[field].get<double>();
}

bool ConfigFields::boolean_or(const std::string& field, bool fallback) const {
  if (!has(field)) return fallback;
  if (!json_[field].is_boolean()) refuse(field, "true or false");
  return json_[field].get<bool>();
}

std::string ConfigFields::text_or(const std::string& field, const std::string& fallback) const {
  if (!has(field)) return fallback;
  if (!json_[field].is_string()) refuse(field, "a text");
  return json_[field].get<std::string>();
}

ConfigFields ConfigFields::object(const std::string& field) const {
  if (!json_[field].is_object()) refuse(field, "an object");
  return ConfigFields(json_[field], where_ + ": \"" + field + "\"");
}

void ConfigFields::refuse_null(std::initializer_list<const char*> fields) const {
  for (const char* field : fields) {
    require(
        !json_.contains(field) || has(field), where_, ": \"", field,
        "\" is null, expected a value: transformers cannot compute with null; write the value, or "
        "leave the field out for the default of its class");
  }
}

void ConfigFields::expect(const std::string& field, const Json& expected) const {
  require(!has(field) || json_[field] == expected, where_, ": \"", field, "\" is ",
          json_.value(field, Json()).dump(), "; this model family is built for ", expected.dump(),
          ": correct it, or name another model");
}

namespace {

// The default values of Qwen2Config and Qwen3Config.
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultFirstLayer = 28;

// Default values of both Gemma configuration classes. An explicit null stays null.
const Json kGemmaDefaults = {
    {"num_key_value_heads", 4}, {"head_dim", 256},   {"query_pre_attn_scalar", 256},
    {"sliding_window", 4096},   {"pad_token_id", 0}, {"tie_word_embeddings", true}};

bool slides(const Json& type, const ConfigFields& fields) {
  require(type == "sliding_attention" || type == "full_attention", fields.where(),
          ": \"layer_types\" holds ", type.dump(),
          ", expected \"full_attention\" or \"sliding_attention\"");
  return type == "sliding_attention";
}

}  // namespace

std::vector<int64_t> windows_of_types(const ConfigFields& fields, int64_t num_layers,
                                      int64_t window) {
  const Json& types = fields.json()["layer_types"];
  require(types.is_array() && types.size() == static_cast<size_t>(num_layers), fields.where(),
          ": \"layer_types\" is ", types.dump(), ", expected a list of ", num_layers, " texts");
  std::vector<int64_t> windows;
  for (const Json& type : types) {
    windows.push_back(slides(type, fields) ? window : 0);
    require(!slides(type, fields) || window > 0, fields.where(),
            ": \"layer_types\" has sliding_attention, but \"use_sliding_window\" is false or "
            "\"sliding_window\" null; set them, or make all layers full_attention");
  }
  return windows;
}

std::vector<int64_t> parse_layer_windows(const ConfigFields& fields, int64_t num_layers) {
  int64_t window = 0;
  if (fields.boolean_or("use_sliding_window", false)) {
    const bool given = fields.json().contains("sliding_window");
    window = given ? fields.positive_or("sliding_window", 0) : kDefaultWindow;
  }
  // positive() would reject 0, which means that all layers have a window.
  const double first = fields.number_or("max_window_layers", kDefaultFirstLayer);
  require(first >= 0 && first < 1e9, fields.where(), ": \"max_window_layers\" is ", first,
          ", expected 0 or more, a number of layers");
  if (fields.has("layer_types")) return windows_of_types(fields, num_layers, window);
  std::vector<int64_t> windows(static_cast<size_t>(num_layers), 0);
  for (auto layer = static_cast<int64_t>(first); layer < num_layers; ++layer) {
    windows[static_cast<size_t>(layer)] = window;
  }
  return windows;
}

Json with_gemma_defaults(const Json& json) {
  Json filled = json;
  for (const auto& [name, value] : kGemmaDefaults.items()) {
    if (!filled.contains(name)) filled[name] = value;
  }
  return filled;
}

double softcap_of(const ConfigFields& fields, const std::string& name) {
  return fields.has(name) ? fields.positive_number(name) : 0.0;
}

ModelConfig parse_gemma_fields(const Json& json, int64_t pattern) {
  Json read = json;
  read.erase("hidden_act");  // transformers reads "hidden_activation" for Gemma
  const ConfigFields fields(read);
  fields.refuse_null({"hidden_activation", "num_key_value_heads", "head_dim"});
  fields.expect("hidden_activation", "gelu_pytorch_tanh");
  ModelConfig config = parse_decoder_fields(fields);
  const int64_t window = fields.positive("sliding_window");
  if (fields.has("layer_types")) {
    config.windows = windows_of_types(fields, config.num_layers, window);
  } else {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      config.windows[static_cast<size_t>(layer)] = (layer + 1) % pattern == 0 ? 0 : window;
    }
  }
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  config.attention_scale = 1 / std::sqrt(fields.positive_number("query_pre_attn_scalar"));
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.norm_offset = 1;
  config.branch_norms = true;
  config.gelu = true;
  return config;
}

}  // namespace fastsft
