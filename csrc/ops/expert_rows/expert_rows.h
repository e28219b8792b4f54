#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// Moves rows between the order of tokens and the order by experts (ops/routing/routing.h has
// `pairs` and `rows`). Tensors are contiguous, float32, bfloat16 or float16; sums are float32 and
// rounded once.

// Copies to each row its token's row: out[r] = x[pairs[r] / chosen].
//   x [tokens, width], pairs [tokens * chosen] int32, out [tokens * chosen, width].
void gather_rows(const at::Tensor& x, const at::Tensor& pairs, const at::Tensor& out);

// Adds each token's rows: out[t] = addend[t] + sum over i of weights[t, i] * grouped[rows[t, i]].
//   grouped [tokens * chosen, width], rows [tokens, chosen] int32, weights [tokens, chosen] in the
//   dtype of `grouped` (none: all 1), addend and out [tokens, width]; `addend` may be `out`.
void combine_rows(const at::Tensor& grouped, const at::Tensor& rows,
                  const std::optional<at::Tensor>& weights, const at::Tensor& addend,
                  const at::Tensor& out);

// Computes the backward of weight * swiglu(gate_up), where each row's weight is that of its pair.
//   grad_out [rows, width]: the gradient; overwritten with weight * swiglu(gate_up).
//   gate_up [rows, 2 * width] as in ops/swiglu/swiglu.h, with SiLU; overwritten with its gradient.
//   weights [tokens, chosen], pairs [rows] int32; grad_weights [tokens, chosen] float32 gets each
//   pair's gradient.
void expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                            const at::Tensor& weights, const at::Tensor& pairs,
                            const at::Tensor& grad_weights);

void check_gather_rows(const at::Tensor& x, const at::Tensor& pairs, const at::Tensor& out);
void check_combine_rows(const at::Tensor& grouped, const at::Tensor& rows,
                        const std::optional<at::Tensor>& weights, const at::Tensor& addend,
                        const at::Tensor& out);
void check_expert_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                  const at::Tensor& weights, const at::Tensor& pairs,
                                  const at::Tensor& grad_weights);

}  // namespace fastsft
