#pragma once

#include <ATen/core/Tensor.h>

#include "ops/routing/routing_limits.h"

namespace fastsft {

// Chooses each token's experts: those with the largest probabilities softmax(logits), in falling
// order; of equal ones the lowest number comes first.
//   logits [tokens, experts] float32, bfloat16 or float16; the softmax is computed in float32.
//   weights [tokens, chosen] in the logits' dtype: probabilities of the chosen experts, divided by
//   their sum if `normalize`, and rounded once.
//   chosen_experts [tokens, chosen] int32: numbers of the chosen experts.
void route_tokens(const at::Tensor& logits, const at::Tensor& weights,
                  const at::Tensor& chosen_experts, bool normalize);

// Computes grad_logits from grad_weights [tokens, chosen] float32. The choice has no gradient.
void route_tokens_backward(const at::Tensor& grad_weights, const at::Tensor& logits,
                           const at::Tensor& chosen_experts, const at::Tensor& grad_logits,
                           bool normalize);

// Groups pairs of a token and a chosen expert by expert. Token t and its expert number i are the
// pair t * chosen + i, and each pair gets a row. All tensors are int32.
//   offsets [experts + 1]: expert e has the rows [offsets[e], offsets[e + 1]).
//   pairs [tokens * chosen]: each row's pair, in rising order within an expert.
//   rows [tokens, chosen]: each pair's row.
void group_pairs(const at::Tensor& chosen_experts, const at::Tensor& offsets,
                 const at::Tensor& pairs, const at::Tensor& rows);

void check_route_tokens(const at::Tensor& logits, const at::Tensor& weights,
                        const at::Tensor& chosen_experts, bool normalize);
void check_route_tokens_backward(const at::Tensor& grad_weights, const at::Tensor& logits,
                                 const at::Tensor& chosen_experts, const at::Tensor& grad_logits,
                                 bool normalize);
void check_group_pairs(const at::Tensor& chosen_experts, const at::Tensor& offsets,
                       const at::Tensor& pairs, const at::Tensor& rows);

}  // namespace fastsft
