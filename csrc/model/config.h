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

// What a decoder of the Llama family is made of; names as in Hugging Face's config.json.
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
  std::optional<RopeSettings> local_rope;  // of layers with a window, where they have their own
  int64_t padding_idx = -1;  // row of the embedding that gets no gradient through it, -1: none
  bool tie_word_embeddings = false;
  bool qkv_bias = false;           // on the query, key and value projections
  bool output_bias = false;        // on the output projection of attention
  bool mlp_bias = false;           // on the gate, up and down projections
  bool qk_norm = false;            // RMS norm of each query and key head, before the rotation
  bool fused_projections = false;  // tensors qkv_proj and gate_up_proj, of the same rows
  std::vector<int64_t> windows;    // tokens that each layer's attention sees, 0: all
  double attention_scale = 0;      // of the scores
  double attention_softcap = 0;    // bound of the scores, 0: none
  double logit_softcap = 0;        // bound of the logits, 0: none
  double embedding_scale = 1;      // of what the embedding gives
  bool scales_noise = false;       // the scale comes after NEFTune's noise
  double norm_offset = 0;          // norms multiply by offset + weight
  bool branch_norms = false;       // norms of what attention and the MLP add to the stream
  bool gelu = false;               // the MLP's gate: GELU's tanh form, else SiLU

  int64_t query_size() const { return num_heads * head_dim; }
  int64_t qkv_size() const { return (num_heads + 2 * num_key_value_heads) * head_dim; }
};

// embedding_scale as `dtype` holds it: transformers multiplies by a tensor of the embedding's
// dtype.
double embedding_scale(const ModelConfig& config, c10::ScalarType dtype);
// values = softcap * tanh(values / softcap) in place, of scores and logits; 0: nothing.
void cap_values(const at::Tensor& values, double softcap);

// A model family: its file registers it by `model_type`.
struct Family {
  std::function<ModelConfig(const Json&)> parse;  // of its config.json
  std::string class_prefix;  // transformers' classes: <prefix>ForCausalLM, <prefix>DecoderLayer
};
struct FamilyTag {
  static constexpr const char* kNoun = "model family";
};
using FamilyRegistry = Registry<FamilyTag, Family>;

// Throws std::invalid_argument for an unknown family, a missing field or a setting that the
// family's native implementation would compute differently.
ModelConfig parse_model_config(const std::string& config_json);

}  // namespace fastsft
