#pragma once

#include <ATen/core/Tensor.h>

#include "ops/gradient/step_scalars.h"

namespace fastsft {

// What happens to flat gradients between the backward pass and the optimizer.

// total += x for flat contiguous tensors of one size; the sum is formed in float32 and rounded to
// total's dtype (float32 or bfloat16) once, to nearest. `x` is float32.
void accumulate(const at::Tensor& total, const at::Tensor& x);

// out += sum of x^2, formed in float64 in a fixed order.  x flat float32 or bfloat16, out [1]
// float64.
void norm_squared(const at::Tensor& x, const at::Tensor& out);

// On the scalars block of ops/gradient/step_scalars.h, with norm = sqrt(norm_squared), writes
//   grad_scale = min(1, float32(max_norm / (norm + 1e-6)))   (torch.nn.utils.clip_grad_norm_)
//                1 when max_norm <= 0;  NaN when loss or norm is not finite
//   step       = step + 1 unless grad_scale is NaN
void compute_grad_scale(const at::Tensor& scalars, double max_norm);

void check_accumulate(const at::Tensor& total, const at::Tensor& x);
void check_norm_squared(const at::Tensor& x, const at::Tensor& out);
void check_compute_grad_scale(const at::Tensor& scalars, double max_norm);
// Of every op that reads the scalars block.
void check_step_scalars(const char* op, const at::Tensor& scalars);

}  // namespace fastsft
