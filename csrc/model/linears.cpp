#include "model/linears.h"

namespace fastsft {
namespace {

using Group = LinearGroup;

std::vector<Linear> attention_linears(const ModelConfig& c) {
  const Linear output = {"self_attn.o_proj", Group::kOutput, c.query_size(), c.hidden_size};
  if (c.fused_projections) {
    return {{"self_attn.qkv_proj", Group::kQkv, c.hidden_size, c.qkv_size()}, output};
  }
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  return {{"self_attn.q_proj", Group::kQkv, c.hidden_size, c.query_size()},
          {"self_attn.k_proj", Group::kQkv, c.hidden_size, kv},
          {"self_attn.v_proj", Group::kQkv, c.hidden_size, kv},
          output};
}

std::vector<Linear> mlp_linears(const ModelConfig& c) {
  const Linear down = {"mlp.down_proj", Group::kDown, c.intermediate_size, c.hidden_size};
  if (c.fused_projections) {
    return {{"mlp.gate_up_proj", Group::kGateUp, c.hidden_size, 2 * c.intermediate_size}, down};
  }
  return {{"mlp.gate_proj", Group::kGateUp, c.hidden_size, c.intermediate_size},
          {"mlp.up_proj", Group::kGateUp, c.hidden_size, c.intermediate_size},
          down};
}

}  // namespace

std::vector<Linear> linears_of(const ModelConfig& config) {
  std::vector<Linear> linears = attention_linears(config);
  for (const Linear& each : mlp_linears(config)) linears.push_back(each);
  linears.push_back({"lm_head", Group::kHead, config.hidden_size, config.vocab_size});
  return linears;
}

std::vector<Linear> linears_of(const ModelConfig& config, LinearGroup group) {
  std::vector<Linear> linears = linears_of(config);
  std::erase_if(linears, [group](const Linear& each) { return each.group != group; });
  return linears;
}

int64_t outputs_of(const std::vector<Linear>& linears) {
  int64_t sum = 0;
  for (const Linear& each : linears) sum += each.outputs;
  return sum;
}

bool has_bias(const ModelConfig& config, LinearGroup group) {
  switch (group) {
    case Group::kQkv:
      return config.qkv_bias;
    case Group::kOutput:
      return config.output_bias;
    case Group::kGateUp:
    case Group::kDown:
      return config.mlp_bias;
    case Group::kHead:
      return false;
  }
  return false;
}

}  // namespace fastsft
