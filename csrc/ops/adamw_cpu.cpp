#include "ops/adamw.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/control_slots.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/flat_kernels.h"
#include "ops/cpu/parallel.h"

namespace fastsft {
namespace {

// Bias corrections and step size are host doubles, as in torch.
cpu::AdamwConstants constants(double lr, double beta1, double beta2, double eps,
                              double weight_decay, double step, float grad_scale) {
  const double bias1 = 1.0 - std::pow(beta1, step);
  const double bias2 = 1.0 - std::pow(beta2, step);
  return {.decay = static_cast<float>(1.0 - lr * weight_decay),
          .beta1_rest = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .beta2_rest = static_cast<float>(1.0 - beta2),
          .bias2_sqrt = static_cast<float>(std::sqrt(bias2)),
          .step_size = static_cast<float>(lr / bias1),
          .eps = static_cast<float>(eps),
          .grad_scale = grad_scale};
}

using cpu::bfloat16;

// bfloat16 gradients are widened piece by piece, so that there is one formula.
void update_range(float* param, const bfloat16* grad, float* exp_avg, float* exp_avg_sq,
                  int64_t count, const cpu::AdamwConstants& c) {
  constexpr int64_t kPiece = 1024;
  std::array<float, kPiece> wide;
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t size = std::min(kPiece, count - i);
    cpu::widen_range(grad + i, wide.data(), size);
    cpu::adamw_range(param + i, wide.data(), exp_avg + i, exp_avg_sq + i, size, c);
  }
}

void update_range(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t count,
                  const cpu::AdamwConstants& c) {
  cpu::adamw_range(param, grad, exp_avg, exp_avg_sq, count, c);
}

template <typename Grad>
void update(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
            const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
            const cpu::AdamwConstants& c) {
  at::parallel_for(0, param.numel(), cpu::kElementsPerTask, [&](int64_t begin, int64_t end) {
    float* p = param.data_ptr<float>() + begin;
    update_range(p, grad.data_ptr<Grad>() + begin, exp_avg.data_ptr<float>() + begin,
                 exp_avg_sq.data_ptr<float>() + begin, end - begin, c);
    if (!compute_copy) return;
    cpu::round_range(p, compute_copy->data_ptr<bfloat16>() + begin, end - begin);
  });
}

void adamw_cpu(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
               const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
               const at::Tensor& control, double lr, double beta1, double beta2, double eps,
               double weight_decay) {
  check_adamw(param, compute_copy, grad, exp_avg, exp_avg_sq, control, lr, beta1, beta2, eps,
              weight_decay);
  const double* values = control.data_ptr<double>();
  const auto scale = static_cast<float>(values[kControlGradScale]);
  if (!std::isfinite(scale)) return;
  const auto c = constants(lr, beta1, beta2, eps, weight_decay, values[kControlStep], scale);
  if (grad.scalar_type() == at::kFloat)
    update<float>(param, compute_copy, grad, exp_avg, exp_avg_sq, c);
  else
    update<bfloat16>(param, compute_copy, grad, exp_avg, exp_avg_sq, c);
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("adamw", &adamw_cpu); }

}  // namespace fastsft
