#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/packer.h"
#include "model/config.h"

namespace fastsft {

// Linears with the same input. Their weights form one matrix here, concatenated by rows.
enum class LinearGroup { kQkv, kOutput, kGateUp, kDown, kHead };
// A block's groups, in forward order.
inline constexpr std::array kBlockLinearGroups = {LinearGroup::kQkv, LinearGroup::kOutput,
                                                  LinearGroup::kGateUp, LinearGroup::kDown};

struct Linear {
  const char* name;  // in its layer or in the model, for example "self_attn.q_proj" or "lm_head"
  LinearGroup group;
  int64_t inputs, outputs;
};

// Return all linears in a block and the head, or a group's linears in row order. The router and the
// experts of a mixture are not among them (mixture.h).
std::vector<Linear> linears_of(const ModelConfig& config);
std::vector<Linear> linears_of(const ModelConfig& config, LinearGroup group);
int64_t outputs_of(const std::vector<Linear>& linears);  // sum over all linears
bool has_bias(const ModelConfig& config, LinearGroup group);

// Returns the operations in a conversation's forward and backward: 6 per token and weight element
// (in a mixture, per element of the router and the chosen experts), and for causal attention 7 per
// pair of tokens and query element (2 + 5 GEMMs over half of the pairs). The head counts for every
// token, which is right if most tokens have labels.
PackCost conversation_cost(const ModelConfig& config);

}  // namespace fastsft
