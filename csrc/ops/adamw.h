#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// One AdamW step over a flat range (torch.optim.AdamW, trainer_semantics.md section 10.2), in
// float32:
//   g = grad * grad_scale
//   p = p * (1 - lr * weight_decay)
//   m = m + (1 - beta1) (g - m);   v = beta2 v + (1 - beta2) g^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   param, exp_avg, exp_avg_sq flat float32; grad float32 or bfloat16, same size.
//   grad_scale and t = step are read from `control` (ops/control_slots.h), t from 1.
// `compute_copy` (bfloat16, same size) receives the rounded parameters. When grad_scale is not
// finite nothing is written: a bad step changes nothing.
void adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
           const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& control, double lr, double beta1, double beta2, double eps,
           double weight_decay);

void check_adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                 const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& control, double lr, double beta1, double beta2, double eps,
                 double weight_decay);

}  // namespace fastsft
