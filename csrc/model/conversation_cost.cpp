#include "model/conversation_cost.h"

namespace fastsft {

PackCost conversation_cost(const ModelConfig& c) {
  const auto hidden = static_cast<double>(c.hidden_size);
  const auto layers = static_cast<double>(c.num_layers),
             query = static_cast<double>(c.query_size());
  const double block = hidden * (static_cast<double>(c.qkv_size()) + query +
                                 3.0 * static_cast<double>(c.intermediate_size));
  const double head = hidden * static_cast<double>(c.vocab_size);
  return {.linear = 6.0 * (layers * block + head), .quadratic = 7.0 * layers * query};
}

}  // namespace fastsft
