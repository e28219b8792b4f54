#pragma once

#include "ops/gradient/control_slots.h"

namespace fastsft::cuda {

// What one AdamW step multiplies by; bias corrections are formed in float64, as in torch.
struct AdamwConstants {
  float decay, beta1_rest, beta2, beta2_rest, bias2_sqrt, step_size, eps, grad_scale;
};

__device__ inline AdamwConstants adamw_constants(const double* control, double lr, double beta1,
                                                 double beta2, double eps, double weight_decay) {
  const double step = control[kControlStep];
  return {.decay = static_cast<float>(1.0 - lr * weight_decay),
          .beta1_rest = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .beta2_rest = static_cast<float>(1.0 - beta2),
          .bias2_sqrt = static_cast<float>(sqrt(1.0 - pow(beta2, step))),
          .step_size = static_cast<float>(lr / (1.0 - pow(beta1, step))),
          .eps = static_cast<float>(eps),
          .grad_scale = static_cast<float>(control[kControlGradScale])};
}

// The new parameter; the moments in place.
__device__ inline float adamw_element(float param, float grad, float& exp_avg, float& exp_avg_sq,
                                      const AdamwConstants& c) {
  const float g = grad * c.grad_scale;
  exp_avg += c.beta1_rest * (g - exp_avg);
  exp_avg_sq = exp_avg_sq * c.beta2 + c.beta2_rest * g * g;
  const float denominator = sqrtf(exp_avg_sq) / c.bias2_sqrt + c.eps;
  return param * c.decay - c.step_size * (exp_avg / denominator);
}

}  // namespace fastsft::cuda
