#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fastsft {

// One AdamW step over a flat range (torch.optim.AdamW, docs/spec/trainer_semantics.md,
// section 10.2), in float32:
//   g = grad * grad_scale
//   p = p * (1 - lr * weight_decay)
//   m = m + (1 - beta1) (g - m);   v = beta2 v + (1 - beta2) g^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   grad float32 or bfloat16, exp_avg and exp_avg_sq both float32 or both bfloat16, same size.
//   grad_scale and t = step are read from `scalars` (ops/gradient/step_scalars.h), t from 1.
// If grad_scale is not finite, nothing is written.
//
// `param` and `compute_copy` are described in ops/master/master.h.
//
// bfloat16 moments are rounded stochastically after the update. Element e = `first_element` + index
// uses word e mod 4 of Philox4x32-10 with counter (e / 4, t) and key `seed`: the lower 16 bits for
// exp_avg and the upper 16 bits for exp_avg_sq.
void adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
           const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
           double weight_decay, int64_t seed, int64_t first_element);

void check_adamw(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                 const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
                 double weight_decay, int64_t seed, int64_t first_element);

}  // namespace fastsft
