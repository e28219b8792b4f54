#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Adds `bias` to every row of x, in place. x [tokens, width] and bias [width] have the same dtype
// and are contiguous. The sum is computed in float32 and rounded once.
void add_bias(const at::Tensor& x, const at::Tensor& bias);

// grad_bias = beta * grad_bias + the sum of grad's rows.
//   grad [tokens, width] float32, bfloat16 or float16, contiguous; grad_bias [width] float32.
// If beta is 0, the old content of grad_bias is ignored. Sums are float32 and deterministic for a
// given thread count.
void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias, double beta);

void check_add_bias(const at::Tensor& x, const at::Tensor& bias);
void check_bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias, double beta);

}  // namespace fastsft
