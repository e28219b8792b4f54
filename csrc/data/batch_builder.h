#pragma once

#include <cstdint>
#include <span>

#include "data/host_batch.h"

namespace fastsft {

// Fills a HostBatch token by token. std::invalid_argument for ids outside [0, vocab_size).
class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t vocab_size);

  // A whole conversation at positions 0, 1, 2, ...
  void add_tokens(std::span<const int32_t> ids);
  void add_tokens(std::span<const int64_t> ids);
  // The next token of a conversation that `end_conversation` closes.
  void add_token(int64_t id, int32_t position, bool is_key);
  void end_conversation();
  // That the logits of token `position` of the batch are compared with `target`.
  void add_label(int64_t position, int64_t target, double weight);

  // That the tokens since the last call are of `row`: makes their keys.
  void key_tokens(int64_t row);

  int64_t num_tokens() const { return static_cast<int64_t>(batch_.input_ids.size()); }
  HostBatch build() { return std::move(batch_); }

 private:
  template <typename Id>
  void add_ids(std::span<const Id> ids);
  void check_id(int64_t id, size_t token) const;

  int64_t vocab_size_;
  HostBatch batch_;
};

}  // namespace fastsft
