#include <algorithm>
#include <utility>

#include "model/config_fields.h"
#include "ops/routing/routing_limits.h"

namespace fastsft {
namespace {

// Checks the numbers of experts, and settings that transformers computes and the engine does not.
void check_mixture(const ConfigFields& fields, const MixtureConfig& mixture) {
  fields.expect("output_router_logits", false);
  require(mixture.experts <= kMostExperts, fields.where(), ": ", mixture.experts,
          " experts; the native engine has at most ", kMostExperts);
  const int64_t most = std::min<int64_t>(mixture.experts, kMostChosen);
  require(mixture.chosen <= most, fields.where(), ": \"num_experts_per_tok\" is ", mixture.chosen,
          ", expected at most ", most, " of ", mixture.experts, " experts");
}

// Returns `json` with default values for absent keys. An explicit null stays null.
Json with_defaults(const Json& json, const Json& defaults) {
  Json filled = defaults;
  filled.update(json);
  return filled;
}

// Default values of Qwen3MoeConfig.
const Json kQwen3MoeDefaults = {{"num_key_value_heads", 4},
                                {"moe_intermediate_size", 768},
                                {"num_experts_per_tok", 8},
                                {"sliding_window", 4096}};
constexpr int64_t kQwen3MoeExperts = 128;

ModelConfig parse_qwen3_moe(const Json& json) {
  const Json filled = with_defaults(json, kQwen3MoeDefaults);
  const ConfigFields fields(filled);
  fields.refuse_null({"num_key_value_heads", "head_dim", "num_experts"});
  // Some layers without experts
  fields.expect("decoder_sparse_step", 1);
  fields.expect("mlp_only_layers", Json::array());
  ModelConfig config = parse_decoder_fields(fields);
  config.qkv_bias = config.output_bias = fields.boolean_or("attention_bias", false);
  config.qk_norm = true;
  if (fields.boolean_or("use_sliding_window", false)) {
    std::ranges::fill(config.windows, fields.positive_or("sliding_window", 0));
  }
  config.intermediate_size = fields.positive("moe_intermediate_size");
  const int64_t experts = fields.positive_or("num_local_experts", kQwen3MoeExperts);
  config.mixture = {.experts = fields.positive_or("num_experts", experts),
                    .chosen = fields.positive("num_experts_per_tok"),
                    .normalized = fields.boolean_or("norm_topk_prob", false),
                    .module = "mlp",
                    .gate = "gate_proj",
                    .up = "up_proj",
                    .down = "down_proj"};
  check_mixture(fields, config.mixture);
  return config;
}

const bool kQwen3MoeRegistered =
    FamilyRegistry::instance().add("qwen3_moe", {parse_qwen3_moe, "Qwen3Moe"});

// Default values of MixtralConfig.
const Json kMixtralDefaults = {{"num_key_value_heads", 8},
                               {"rms_norm_eps", 1e-5},
                               {"rope_theta", 1e6},
                               {"num_local_experts", 8},
                               {"num_experts_per_tok", 2}};

ModelConfig parse_mixtral(const Json& json) {
  const Json filled = with_defaults(json, kMixtralDefaults);
  const ConfigFields fields(filled);
  fields.expect("router_jitter_noise", 0.0);
  ModelConfig config = parse_decoder_fields(fields);
  std::ranges::fill(config.windows, fields.positive_or("sliding_window", 0));
  config.mixture = {.experts = fields.positive("num_local_experts"),
                    .chosen = fields.positive("num_experts_per_tok"),
                    .normalized = true,
                    .module = "block_sparse_moe",
                    .gate = "w1",
                    .up = "w3",
                    .down = "w2"};
  check_mixture(fields, config.mixture);
  return config;
}

const bool kMixtralRegistered =
    FamilyRegistry::instance().add("mixtral", {parse_mixtral, "Mixtral"});

}  // namespace
}  // namespace fastsft
