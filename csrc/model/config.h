#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/registry.h"
#include "model/rope_scaling.h"

namespace fastsft {

// The experts that a mixture has in place of each layer's MLP.
struct MixtureConfig {
  int64_t experts = 0;      // experts of a layer; 0: the model is no mixture
  int64_t chosen = 0;       // num_experts_per_tok
  bool normalized = false;  // the weights of a token's experts add up to 1
  // Names in files: <module>.gate is the router, <module>.experts.<number>.<gate> a projection.
  std::string module = {}, gate = {}, up = {}, down = {};
};

// The configuration of a Llama-like decoder, with names as in Hugging Face's config.json.
struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;  // num_hidden_layers
  int64_t num_heads = 0;   // num_attention_heads
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 0;
  RopeSettings rope;
  std::optional<RopeSettings> local_rope;  // RoPE of sliding-window layers, if they have their own
  int64_t padding_idx = -1;                // embedding row without gradient as an input; -1: none
  bool tie_word_embeddings = false;
  bool qkv_bias = false;           // query, key and value projections have biases
  bool output_bias = false;        // attention's output projection has a bias
  bool mlp_bias = false;           // gate, up and down projections have biases
  bool qk_norm = false;            // RMS norm of each query and key head before RoPE
  bool fused_projections = false;  // tensors qkv_proj and gate_up_proj instead of separate matrices
  std::vector<int64_t> windows;    // tokens that each layer's attention sees; 0: all
  double attention_scale = 0;      // factor of the attention scores
  double attention_softcap = 0;    // soft limit of the attention scores; 0: none
  double logit_softcap = 0;        // soft limit of the logits; 0: none
  double embedding_scale = 1;      // factor of the embedding's output
  bool scales_noise = false;       // the embedding's factor is applied after NEFTune's noise
  double norm_offset = 0;          // norms multiply by offset + weight
  bool branch_norms = false;   // norms of attention's and the MLP's output before the residual sum
  bool gelu = false;           // the MLP uses GELU's tanh form instead of SiLU
  MixtureConfig mixture = {};  // `intermediate_size` is that of an expert

  bool is_mixture() const { return mixture.experts > 0; }
  // Returns the rows of a micro-batch that pass through the MLP.
  int64_t mlp_rows(int64_t tokens) const { return is_mixture() ? tokens * mixture.chosen : tokens; }
  int64_t query_size() const { return num_heads * head_dim; }
  int64_t qkv_size() const { return (num_heads + 2 * num_key_value_heads) * head_dim; }
};

// Returns embedding_scale, rounded to `dtype`: transformers multiplies by a tensor of the
// embedding's dtype.
double embedding_scale(const ModelConfig& config, c10::ScalarType dtype);
// Computes softcap * tanh(values / softcap) in place, for scores and logits. No-op if softcap is 0.
void cap_values(const at::Tensor& values, double softcap);

// A model family. A source file registers the family by its `model_type`.
struct Family {
  std::function<ModelConfig(const Json&)> parse;  // reads the family's config.json
  std::string class_prefix;  // of transformers' <prefix>ForCausalLM, <prefix>DecoderLayer
};
struct FamilyTag {
  static constexpr const char* kNoun = "model family";
};
using FamilyRegistry = Registry<FamilyTag, Family>;

// Parses a config.json. Throws std::invalid_argument for an unknown family, a missing field, or a
// setting that the family's native implementation does not support.
ModelConfig parse_model_config(const std::string& config_json);

}  // namespace fastsft
