#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "data/token_dataset.h"

namespace fastsft {

// A micro-batch without padding: conversations laid end to end, positions restart at each.
// Everything that decides a shape is known on the host.
struct Batch {
  at::Tensor input_ids;        // [tokens] int64
  at::Tensor positions;        // [tokens] int32
  at::Tensor cu_seqlens;       // [conversations + 1] int32
  at::Tensor label_positions;  // [labels] int64: tokens whose successor is learned
  at::Tensor targets;          // [labels] int64: that successor
  at::Tensor token_weights;    // [labels] float32: what multiplies its loss

  int64_t num_tokens() const { return input_ids.size(0); }
  int64_t num_labels() const { return label_positions.size(0); }
};

// `weights[i]` multiplies every token loss of conversation `rows[i]`. Conversations without a
// target are left out, and tokens after the last target's predecessor are cut: attention is causal,
// so nothing that is learned can see them. Ids outside [0, vocab_size) throw std::invalid_argument.
Batch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                 std::span<const double> weights, int64_t vocab_size);

// A batch of given ids for logits: no labels.
Batch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
                            int64_t vocab_size);

}  // namespace fastsft
