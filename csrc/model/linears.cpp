#include "model/linears.h"

namespace fastsft {

namespace {
using Group = LinearGroup;

std::vector<Linear> all_linears(const ModelConfig& c) {
  const int64_t hidden = c.hidden_size, intermediate = c.intermediate_size;
  const Linear output = {"self_attn.o_proj", Group::kOutput, c.query_size(), hidden};
  const Linear down = {"mlp.down_proj", Group::kDown, intermediate, hidden};
  const Linear head = {"lm_head", Group::kHead, hidden, c.vocab_size};
  if (c.fused_projections) {
    return {{"self_attn.qkv_proj", Group::kQkv, hidden, c.qkv_size()},
            output,
            {"mlp.gate_up_proj", Group::kGateUp, hidden, 2 * intermediate},
            down,
            head};
  }
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  return {{"self_attn.q_proj", Group::kQkv, hidden, c.query_size()},
          {"self_attn.k_proj", Group::kQkv, hidden, kv},
          {"self_attn.v_proj", Group::kQkv, hidden, kv},
          output,
          {"mlp.gate_proj", Group::kGateUp, hidden, intermediate},
          {"mlp.up_proj", Group::kGateUp, hidden, intermediate},
          down,
          head};
}

}  // namespace

std::vector<Linear> linears_of(const ModelConfig& config) {
  std::vector<Linear> linears = all_linears(config);
  if (config.is_mixture()) {
    std::erase_if(linears, [](const Linear& each) {
      return each.group == Group::kGateUp || each.group == Group::kDown;
    });
  }
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

PackCost conversation_cost(const ModelConfig& c) {
  const auto hidden = static_cast<double>(c.hidden_size);
  const auto layers = static_cast<double>(c.num_layers),
             query = static_cast<double>(c.query_size());
  const double mlp = 3.0 * static_cast<double>(c.mlp_rows(1) * c.intermediate_size) +
                     static_cast<double>(c.mixture.experts);
  const double block = hidden * (static_cast<double>(c.qkv_size()) + query + mlp);
  const double head = hidden * static_cast<double>(c.vocab_size);
  return {.linear = 6.0 * (layers * block + head), .quadratic = 7.0 * layers * query};
}

}  // namespace fastsft
