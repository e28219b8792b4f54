#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/config.h"

namespace fastsft {

inline constexpr const char* kNoGenericContext =
    "context_parallel_size is not 1, but the classes of transformers compute this model, whose "
    "attention needs all tokens of a conversation; leave it out, or use a model that fastsft "
    "computes natively";

// Throws std::invalid_argument unless `ranks` can share the tokens of a model with this
// config.json. Empty: the model has no native engine.
void check_context_ranks(const std::optional<std::string>& config_json, int64_t ranks);

// A range of heads.
struct HeadRange {
  int64_t begin = 0, count = 0;
};

// The heads whose attention a context rank computes, for all tokens of a micro-batch. Every rank
// has equally many query heads, and the key and value heads that those read. If there are fewer key
// heads than ranks, `sharers` neighbouring ranks have the same key head.
class ContextHeads {
 public:
  // Throws std::invalid_argument unless `ranks` divides the query heads, and is a divisor or a
  // multiple of the key and value heads; the message has the numbers that do.
  ContextHeads(const ModelConfig& config, int64_t ranks);

  int64_t ranks() const { return ranks_; }
  int64_t sharers() const { return sharers_; }
  HeadRange query(int64_t rank) const;
  HeadRange key_value(int64_t rank) const;
  // Returns a rank's number of query heads, and of key heads.
  int64_t num_heads() const { return num_heads_; }
  int64_t num_key_value_heads() const { return num_key_value_heads_; }
  // Return the columns of a rank's queries, and of its queries, keys and values.
  int64_t query_size() const { return num_heads_ * head_dim_; }
  int64_t qkv_size() const { return (num_heads_ + 2 * num_key_value_heads_) * head_dim_; }
  int64_t head_dim() const { return head_dim_; }

  // Returns the configuration of a model that has a rank's heads only, for sizes of attention.
  ModelConfig of_rank(const ModelConfig& config) const;

 private:
  int64_t ranks_, sharers_, head_dim_, num_heads_, num_key_value_heads_;
};

}  // namespace fastsft
