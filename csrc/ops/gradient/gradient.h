#pragma once

#include <ATen/core/Tensor.h>

#include "ops/gradient/step_scalars.h"

namespace fastsft {

// These ops work on flat gradients between the backward pass and the optimizer.

// total += x for flat contiguous tensors of one size. `x` is float32; the float32 sum is rounded
// once, to nearest, to total's dtype (float32 or bfloat16).
void accumulate(const at::Tensor& total, const at::Tensor& x);

// out += the sum of x^2, computed in float64 in a fixed order. x is flat float32 or bfloat16, out
// [1] float64.
void norm_squared(const at::Tensor& x, const at::Tensor& out);

// Updates the scalars block (ops/gradient/step_scalars.h), with norm = sqrt(norm_squared):
//   grad_scale = min(1, float32(max_norm / (norm + 1e-6)))   (torch.nn.utils.clip_grad_norm_)
//                1 if max_norm <= 0;  NaN if loss or norm is not finite
//   step       = step + 1 unless grad_scale is NaN
void compute_grad_scale(const at::Tensor& scalars, double max_norm);

void check_accumulate(const at::Tensor& total, const at::Tensor& x);
void check_norm_squared(const at::Tensor& x, const at::Tensor& out);
void check_compute_grad_scale(const at::Tensor& scalars, double max_norm);
// Checks the scalars block; all ops that read the block call this.
void check_step_scalars(const char* op, const at::Tensor& scalars);

}  // namespace fastsft
