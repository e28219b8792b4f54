#pragma once

#include "data/packer.h"
#include "model/config.h"

namespace fastsft {

// Operations of forward and backward of a conversation: 6 a token and matrix element, and 7 a pair
// of tokens and query element for causal attention (2 + 5 products over half of the pairs). The
// head counts for every token, which is right where most tokens are learned.
inline PackCost conversation_cost(const ModelConfig& c) {
  const auto hidden = static_cast<double>(c.hidden_size);
  const auto layers = static_cast<double>(c.num_layers),
             query = static_cast<double>(c.query_size());
  const double block = hidden * (static_cast<double>(c.qkv_size()) + query +
                                 3.0 * static_cast<double>(c.intermediate_size));
  const double head = hidden * static_cast<double>(c.vocab_size);
  return {.linear = 6.0 * (layers * block + head), .quadratic = 7.0 * layers * query};
}

}  // namespace fastsft
