#pragma once

#include "data/packer.h"
#include "model/config.h"

namespace fastsft {

// Operations of forward and backward of a conversation: 6 a token and matrix element, and 7 a pair
// of tokens and query element for causal attention (2 + 5 products over half of the pairs). The
// head counts for every token, which is right where most tokens are learned.
PackCost conversation_cost(const ModelConfig& config);

}  // namespace fastsft
