#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// Applies RMSNorm to each query and key head, before the rotation:
//   out = x * rstd * (offset + weight),  rstd = 1 / sqrt(mean(x^2 over the head) + eps)
//   x, out [tokens, width] float32, bfloat16 or float16, contiguous: num_heads query heads, then
//     num_key_value_heads key heads, then the rest (the value heads), which is copied;
//   weight [2, head_dim] of the same dtype: row 0 for the query heads, row 1 for the key heads;
//   rstd [tokens, num_heads + num_key_value_heads] float32.
// Arithmetic is float32. Overwrites out and rstd. `out` may be x, but the backward pass needs x, so
// callers usually keep x and recompute `out`.
void qk_norm(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
             int64_t num_key_value_heads, double eps, const at::Tensor& out, const at::Tensor& rstd,
             double offset = 0);

// Replaces grad [tokens, width], d loss / d out, by d loss / d x; the rest after the key heads
// stays. With n = x * rstd and g = grad * (offset + weight) in each head:
//   grad = rstd * (g - n * mean(g * n))
//   grad_weight = beta * grad_weight + sum over tokens and heads of grad * n      [2, head_dim]
// x is qk_norm's input and rstd its output. grad_weight is float32; if beta is 0, its old content
// is ignored, and if it is absent, only `grad` is computed. Deterministic for a given thread count.
void qk_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                      const std::optional<at::Tensor>& grad_weight, double beta, double offset = 0);

void check_qk_norm(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
                   int64_t num_key_value_heads, double eps, const at::Tensor& out,
                   const at::Tensor& rstd, double offset);
void check_qk_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                            const std::optional<at::Tensor>& grad_weight, double beta,
                            double offset);

}  // namespace fastsft
