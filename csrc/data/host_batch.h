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
  std::vector<int64_t> label_positions;  // [labels]: tokens whose successor is learned
  std::vector<int64_t> targets;          // [labels]: that successor
  std::vector<float> token_weights;      // [labels]: what multiplies its loss
  int64_t max_seqlen = 0;                // the longest conversation
};

// `weights[i]` multiplies every token loss of conversation `rows[i]`. Conversations without a
// target are left out, and tokens after the last target's predecessor are cut: attention is causal,
// so nothing that is learned can see them. Ids outside [0, vocab_size) throw std::invalid_argument.
HostBatch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                     std::span<const double> weights, int64_t vocab_size);

// A batch of given ids for logits: no labels.
HostBatch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
                                int64_t vocab_size);

}  // namespace fastsft
