#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_dataset.h"

namespace fastsft {

// A micro-batch without padding, on the host: conversations laid end to end, positions restart at
// each. Everything that decides a shape or a launch is known here.
struct HostBatch {
  std::vector<int64_t> input_ids;        // [tokens]
  std::vector<int32_t> positions;        // [tokens]
  std::vector<int32_t> cu_seqlens;       // [conversations + 1]
  std::vector<uint8_t> is_key;           // [tokens], GeneralRow; empty where all are keys
  std::vector<int32_t> token_keys;       // [tokens] if BatchRules::token_keys: random, but the same
                                         // for a token of a row in every batch
  std::vector<int64_t> label_positions;  // [labels]: tokens whose successor is learned
  std::vector<int64_t> targets;          // [labels]: what it is learned as
  std::vector<float> token_weights;      // [labels]: what multiplies its loss
  int64_t max_seqlen = 0;                // the longest conversation
  int64_t num_positions = 0;             // every position is below this
};

// What a model makes of rows. A general row is one conversation, or one for each of the sequences
// that its positions tell apart where `find_packed` and it has no attention mask: there a position
// that is not the one before plus 1 begins another, as in transformers.
struct BatchRules {
  int64_t vocab_size = 0;
  int64_t window = 0;  // the smallest of the layers' windows, 0: none
  bool find_packed = false;
  bool token_keys = false;
};

// `weights[i]` multiplies every token loss of conversation `rows[i]`. Conversations without a
// target are left out, and tokens after the last target's predecessor are cut: attention is causal,
// so nothing that is learned can see them. Masked tokens without a target are left out too, unless
// a window counts them. Ids outside [0, vocab_size) throw std::invalid_argument.
HostBatch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                     std::span<const double> weights, const BatchRules& rules);

// All tokens of `rows`, for logits: no labels.
HostBatch make_unlabelled_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                                const BatchRules& rules);
// A batch of given ids, likewise.
HostBatch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
                                int64_t vocab_size);

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
