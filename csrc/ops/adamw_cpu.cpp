#include "ops/adamw.h"

#include <torch/library.h>

#include <cmath>

#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"

namespace fastsft {
namespace {

// Bias corrections and step size are host doubles, as in torch.
cpu::AdamwConstants constants(double lr, double beta1, double beta2, double eps,
                              double weight_decay, int64_t step, float grad_scale) {
  const double bias1 = 1.0 - std::pow(beta1, static_cast<double>(step));
  const double bias2 = 1.0 - std::pow(beta2, static_cast<double>(step));
  return {.decay = static_cast<float>(1.0 - lr * weight_decay),
          .beta1_rest = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .beta2_rest = static_cast<float>(1.0 - beta2),
          .bias2_sqrt = static_cast<float>(std::sqrt(bias2)),
          .step_size = static_cast<float>(lr / bias1),
          .eps = static_cast<float>(eps),
          .grad_scale = grad_scale};
}

void adamw_cpu(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
               const at::Tensor& grad_scale, double lr, double beta1, double beta2, double eps,
               double weight_decay, int64_t step) {
  check_adamw(param, compute_copy, grad, exp_avg, exp_avg_sq, grad_scale, lr, beta1, beta2, eps,
              weight_decay, step);
  const float scale = *grad_scale.data_ptr<float>();
  if (!std::isfinite(scale)) return;
  const auto c = constants(lr, beta1, beta2, eps, weight_decay, step, scale);
  at::parallel_for(0, param.numel(), cpu::kElementsPerTask, [&](int64_t begin, int64_t end) {
    float* p = param.data_ptr<float>() + begin;
    cpu::adamw_range(p, grad.data_ptr<float>() + begin, exp_avg.data_ptr<float>() + begin,
                     exp_avg_sq.data_ptr<float>() + begin, end - begin, c);
    if (!compute_copy) return;
    cpu::round_range(p, compute_copy->data_ptr<c10::BFloat16>() + begin, end - begin);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("adamw", &adamw_cpu); }

}  // namespace fastsft
