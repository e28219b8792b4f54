#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// x += bias on every row, in place. x [tokens, width] and bias [width], both float32 or both
// bfloat16, contiguous; the sum is formed in float32 and rounded once.
void add_bias(const at::Tensor& x, const at::Tensor& bias);

// grad_bias = beta * grad_bias + the sum of the rows of grad.
//   grad [tokens, width] float32, bfloat16 or float16, contiguous; grad_bias [width] float32.
// With beta = 0 what grad_bias held does not matter. Summed in float32, deterministic for a given
// number of threads.
void bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias, double beta);

void check_add_bias(const at::Tensor& x, const at::Tensor& bias);
void check_bias_backward(const at::Tensor& grad, const at::Tensor& grad_bias, double beta);

}  // namespace fastsft
