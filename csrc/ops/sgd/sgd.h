#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// Does one step of torch.optim.SGD without momentum on a flat range, in float32:
//   p = p - lr * (grad * grad_scale + weight_decay * p)
//   grad float32 or bfloat16; grad_scale is read from `scalars` (ops/gradient/step_scalars.h).
// If grad_scale is not finite, nothing is written. `param` and `compute_copy` are a float32 or
// split master and its rounded copy (ops/master/master.h).
void sgd(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
         const at::Tensor& grad, const at::Tensor& scalars, double lr, double weight_decay);

void check_sgd(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& scalars, double lr, double weight_decay);

}  // namespace fastsft
