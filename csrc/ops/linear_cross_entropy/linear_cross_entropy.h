#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// Arguments of linear_cross_entropy, in the order of the op's schema. With p = softmax(logits[i]),
// t = targets[i], s = label_smoothing and V the vocabulary:
//   logits       = hidden weight^T [+ low_rank low_rank_weight^T]; with a softcap c > 0 then
//                  c * tanh(logits / c)
//   loss        += sum_i token_weights[i] * ((1 - s) * -log p[t] + s * mean over V of -log p)
//   grad_hidden  = d loss / d hidden
//   grad_weight  = beta * grad_weight + d loss / d weight
// Logits and their gradient have the dtype of `hidden`, as in transformers; softmax and loss are
// float32.
struct LinearCrossEntropyArgs {
  at::Tensor hidden, weight;  // [tokens, hidden] and [V, hidden], float32, bfloat16 or float16
  at::Tensor targets;         // [tokens] int64
  at::Tensor token_weights;   // [tokens] float32
  double label_smoothing = 0;
  at::Tensor loss;                             // [1] float64
  std::optional<at::Tensor> grad_hidden = {};  // like hidden; without it only the loss is computed
  std::optional<at::Tensor> grad_weight = {};  // [V, hidden] float32; none if the weight is frozen
  double beta = 0;                             // factor for the old grad_weight
  // Memory for a chunk of logits: uint8, any content, at least logits_workspace_bytes. If absent,
  // the op allocates.
  std::optional<at::Tensor> workspace = {};
  // An adapter of the head: [tokens, r] and [V, r]. The gradients have the dtypes of grad_hidden
  // and grad_weight.
  std::optional<at::Tensor> low_rank = {}, low_rank_weight = {};
  std::optional<at::Tensor> grad_low_rank = {}, grad_low_rank_weight = {};
  double low_rank_beta = 0;  // factor for the old grad_low_rank_weight
  double softcap = 0;
};

// Computes head and loss in one op, in chunks, so that all logits are never in memory at once.
void linear_cross_entropy(const LinearCrossEntropyArgs& args);

void check_linear_cross_entropy(const LinearCrossEntropyArgs& args);

}  // namespace fastsft
