#include "model/context_heads.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace fastsft {
namespace {

bool divides(int64_t heads, int64_t keys, int64_t ranks) {
  return ranks >= 1 && heads % ranks == 0 && (keys % ranks == 0 || ranks % keys == 0);
}

std::string numbers_that_divide(int64_t heads, int64_t keys) {
  std::string numbers = "1";
  for (int64_t ranks = 2; ranks <= heads; ++ranks) {
    if (divides(heads, keys, ranks))
      numbers += (ranks == heads ? " or " : ", ") + std::to_string(ranks);
  }
  return numbers;
}

}  // namespace

void check_context_ranks(const std::optional<std::string>& config_json, int64_t ranks) {
  require(ranks == 1 || config_json, kNoGenericContext);
  if (config_json) ContextHeads(parse_model_config(*config_json), ranks);
}

ContextHeads::ContextHeads(const ModelConfig& config, int64_t ranks)
    : ranks_(ranks), head_dim_(config.head_dim) {
  const int64_t heads = config.num_heads, keys = config.num_key_value_heads;
  require(divides(heads, keys, ranks), "context_parallel_size: expected ",
          numbers_that_divide(heads, keys), ", by which the model's ", heads,
          " attention heads with ", keys, " key and value heads can be divided, got ", ranks);
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
