#include <algorithm>
#include <utility>

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

// Default values of MistralConfig for absent keys; an explicit null has another meaning.
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

constexpr int64_t kQwen2KeyValueHeads = 32;  // Qwen2Config's value for an absent key

ModelConfig parse_qwen2(const Json& json) {
  Json filled = json;
  if (!json.contains("num_key_value_heads")) filled["num_key_value_heads"] = kQwen2KeyValueHeads;
  const ConfigFields fields(filled);
  fields.refuse_null({"head_dim"});
  ModelConfig config = parse_decoder_fields(fields);
  config.qkv_bias = true;
  config.windows = parse_layer_windows(fields, config.num_layers);
  return config;
}

const bool kQwen2Registered = FamilyRegistry::instance().add("qwen2", {parse_qwen2, "Qwen2"});

// Default values of Qwen3Config for absent keys.
constexpr int64_t kQwen3KeyValueHeads = 32;
constexpr int64_t kDefaultHeadDim = 128;

ModelConfig parse_qwen3(const Json& json) {
  Json filled = json;
  if (!json.contains("num_key_value_heads")) filled["num_key_value_heads"] = kQwen3KeyValueHeads;
  if (!json.contains("head_dim")) filled["head_dim"] = kDefaultHeadDim;
  const ConfigFields fields(filled);
  fields.refuse_null({"head_dim"});
  ModelConfig config = parse_decoder_fields(fields);
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  config.qk_norm = true;
  config.windows = parse_layer_windows(fields, config.num_layers);
  return config;
}

const bool kQwen3Registered = FamilyRegistry::instance().add("qwen3", {parse_qwen3, "Qwen3"});

// Returns Phi3Config's default values for absent keys.
const Json& defaults() {
  static const Json values = {{"rms_norm_eps", 1e-5},
                              {"pad_token_id", 32000},
                              {"max_position_embeddings", 4096},
                              {"original_max_position_embeddings", 4096}};
  return values;
}

// Renames "su" and "yarn" to longrope: they are its old names in Phi3Config.
void rename_scaling(Json& json) {
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    if (!json.contains(field) || !json[field].is_object()) continue;
    Json& settings = json[field];
    for (const char* key : {"type", "rope_type"}) {
      if (!settings.contains(key)) continue;
      if (settings[key] == "su" || settings[key] == "yarn") settings[key] = "longrope";
    }
  }
}

ModelConfig parse_phi3(const Json& json) {
  Json filled = defaults();
  filled.update(json);
  rename_scaling(filled);
  const ConfigFields fields(filled);
  fields.refuse_null({"head_dim"});
  fields.expect("layer_types", Json());
  ModelConfig config = parse_decoder_fields(fields);
  config.fused_projections = true;
  std::ranges::fill(config.windows, fields.positive_or("sliding_window", 0));
  return config;
}

const bool kPhi3Registered = FamilyRegistry::instance().add("phi3", {parse_phi3, "Phi3"});

// Values of transformers' Gemma2Config for absent keys. An explicit null turns the limit off.
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

// Default values of Gemma3TextConfig for absent keys.
constexpr int64_t kPattern = 6;
constexpr double kGlobalBase = 1e6;
constexpr double kLocalBase = 1e4;

// Converts transformers 5's "rope_parameters" to transformers 4's fields for the two layer kinds.
Json with_flat_rope(Json json) {
  const ConfigFields fields(json);
  if (!fields.has("rope_parameters")) {
    if (!json.contains("rope_theta")) json["rope_theta"] = kGlobalBase;
    if (!json.contains("rope_local_base_freq")) json["rope_local_base_freq"] = kLocalBase;
    return json;
  }
  const ConfigFields both = fields.object("rope_parameters");
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    require(both.has(kind), both.where(), ": \"", kind,
            "\" is missing, expected a rotation for each kind of layer");
  }
  const ConfigFields local = both.object("sliding_attention");
  local.expect("rope_type", "default");
  // Read both objects before adding keys: a new key may move the others in memory.
  const double local_base = local.number_or("rope_theta", kLocalBase);
  Json global = both.object("full_attention").json();
  json["rope_local_base_freq"] = local_base;
  json["rope_theta"] = kGlobalBase;
  json["rope_scaling"] = std::move(global);
  json.erase("rope_parameters");
  return json;
}

ModelConfig parse_gemma3(const Json& json) {
  const Json filled = with_flat_rope(with_gemma_defaults(json));
  const ConfigFields fields(filled);
  // Gemma 3 in transformers ignores attn_logit_softcapping, and with use_bidirectional_attention it
  // attends to later tokens. Both are rejected.
  fields.expect("attn_logit_softcapping", Json());
  fields.expect("use_bidirectional_attention", false);
  const auto pattern = static_cast<int64_t>(fields.positive_or("sliding_window_pattern", kPattern));
  ModelConfig config = parse_gemma_fields(filled, pattern);
  config.qk_norm = true;
  config.logit_softcap = softcap_of(fields, "final_logit_softcapping");
  Json local = filled;
  local["rope_theta"] = fields.positive_number("rope_local_base_freq");
  local.erase("rope_scaling");
  config.local_rope = parse_rope(ConfigFields(local), config.head_dim);
  return config;
}

const bool kGemma3Registered =
    FamilyRegistry::instance().add("gemma3_text", {parse_gemma3, "Gemma3"});

}  // namespace

}  // namespace fastsft
