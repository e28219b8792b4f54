#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/attention_ranges.h"
#include "data/token_dataset.h"

namespace fastsft {

// A micro-batch without padding on the host: conversations laid end to end, with positions that
// restart at each. It holds all sizes, so that choosing shapes and kernels never waits for the
// device.
struct HostBatch {
  std::vector<int64_t> input_ids;   // [tokens]
  std::vector<int32_t> positions;   // [tokens]
  std::vector<int32_t> cu_seqlens;  // [conversations + 1]
  std::vector<uint8_t> is_key;      // [tokens], as GeneralRow; empty if all tokens are keys
  // [tokens] if BatchRules::token_keys: random numbers; a token of a row has the same number in
  // every batch
  std::vector<int32_t> token_keys;
  std::vector<int64_t> label_positions;  // [labels]: index of the token before each target
  std::vector<int64_t> targets;          // [labels]: target ids
  std::vector<float> token_weights;      // [labels]: loss weights
  CudnnInputs cudnn;                     // empty without BatchRules::cudnn
  int64_t max_seqlen = 0;                // tokens in the longest conversation
  int64_t num_positions = 0;             // largest position + 1
  // True if this is a context rank's part (context_slice.h). [tokens] is then the part's length,
  // but cu_seqlens, is_key, cudnn and max_seqlen describe the whole micro-batch.
  bool is_slice = false;
};

// How a model reads rows. A general row is one conversation. If `find_packed` is set and the row
// has no attention mask, it is split into its packed sequences: as in transformers, a position that
// is not the previous position plus 1 begins a new sequence.
struct BatchRules {
  int64_t vocab_size = 0;
  int64_t window = 0;  // smallest sliding window among the layers; 0: no window
  bool find_packed = false;
  bool token_keys = false;
  // The model's heads if cuDNN computes attention: the batch has cuDNN's lists then, and
  // conversations with labels are in descending order of length.
  std::optional<HeadShape> cudnn = {};
};

// Returns a batch with the tokens and targets in `rows`. `weights[i]` multiplies every token loss
// in conversation `rows[i]`. Conversations without targets are left out. Because attention is
// causal, tokens after a conversation's last target affect no loss and are cut off. Masked tokens
// without a target are left out too, unless a sliding window counts them. Throws
// std::invalid_argument for ids outside [0, vocab_size).
HostBatch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                     std::span<const double> weights, const BatchRules& rules);

// Returns a batch with all tokens in `rows`, in their order, without labels, to compute logits.
HostBatch make_unlabelled_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                                const BatchRules& rules);
// Returns a batch with these conversations, without labels, to compute logits. `ids`: the
// conversations end to end; `lengths`: their token counts.
HostBatch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
                                const BatchRules& rules);

// Builds a HostBatch token by token. Throws std::invalid_argument for ids outside [0, vocab_size).
class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t vocab_size);

  // Adds a whole conversation with positions 0, 1, 2, ...
  void add_tokens(std::span<const int32_t> ids);
  void add_tokens(std::span<const int64_t> ids);
  // Adds the next token of the current conversation, which `end_conversation` closes.
  void add_token(int64_t id, int32_t position, bool is_key);
  void end_conversation();
  // Adds a target: the batch's token `position` has logits that are compared with `target`.
  void add_label(int64_t position, int64_t target, double weight);

  // Generates token_keys for the tokens added since the last call, which must belong to `row`.
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
