#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/packer.h"
#include "model/config.h"

namespace fastsft {

// Linears that read the same input: their weights are one matrix here, by rows.
enum class LinearGroup { kQkv, kOutput, kGateUp, kDown, kHead };
// Those of a block, in the order of its forward.
inline constexpr std::array kBlockLinearGroups = {LinearGroup::kQkv, LinearGroup::kOutput,
                                                  LinearGroup::kGateUp, LinearGroup::kDown};

struct Linear {
  const char* name;  // in its layer, or in the model: "self_attn.q_proj", "lm_head"
  LinearGroup group;
  int64_t inputs, outputs;
};

// Of a block and the head, those of a group in the order of its rows.
std::vector<Linear> linears_of(const ModelConfig& config);
std::vector<Linear> linears_of(const ModelConfig& config, LinearGroup group);
int64_t outputs_of(const std::vector<Linear>& linears);  // of all together
bool has_bias(const ModelConfig& config, LinearGroup group);

// Operations of forward and backward of a conversation: 6 a token and matrix element, and 7 a pair
// of tokens and query element for causal attention (2 + 5 products over half of the pairs). The
// head counts for every token, which is right where most tokens are learned.
PackCost conversation_cost(const ModelConfig& config);

}  // namespace fastsft
