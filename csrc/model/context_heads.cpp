#include "model/context_heads.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {

ContextHeads::ContextHeads(const ModelConfig& config, int64_t ranks)
    : ranks_(ranks), head_dim_(config.head_dim) {
  const int64_t heads = config.num_heads, keys = config.num_key_value_heads;
  require(ranks >= 1, "context_parallel_size is ", ranks, ", expected at least 1");
  require(heads % ranks == 0 && (keys % ranks == 0 || ranks % keys == 0), "context_parallel_size ",
          ranks, " does not divide the model's ", heads, " attention heads with ", keys,
          " key and value heads evenly; use a divisor of ", heads,
          " that is a divisor or a multiple of ", keys);
  num_heads_ = heads / ranks;
  num_key_value_heads_ = std::max<int64_t>(keys / ranks, 1);
  sharers_ = std::max<int64_t>(ranks / keys, 1);
}

HeadRange ContextHeads::query(int64_t rank) const { return {rank * num_heads_, num_heads_}; }

HeadRange ContextHeads::key_value(int64_t rank) const {
  return {rank / sharers_ * num_key_value_heads_, num_key_value_heads_};
}

ModelConfig ContextHeads::of_rank(const ModelConfig& config) const {
  ModelConfig own = config;
  own.num_heads = num_heads_;
  own.num_key_value_heads = num_key_value_heads_;
  return own;
}

}  // namespace fastsft
