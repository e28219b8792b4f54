#include "ops/cpu/flat_kernels.h"

#include <cmath>

#include "ops/cpu/elements.h"

namespace fastsft::cpu {

FASTSFT_CLONES double sum_of_squares(const float* x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

FASTSFT_CLONES void adamw_range(float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                                int64_t count, const AdamwConstants& constants) {
  const AdamwConstants c = constants;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.grad_scale;
    const float m = exp_avg[i] + c.beta1_rest * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * c.beta2 + c.beta2_rest * g * g;
    const float denominator = std::sqrt(v) / c.bias2_sqrt + c.eps;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * c.decay - c.step_size * (m / denominator);
  }
}

FASTSFT_CLONES void widen_range(const bfloat16* from, float* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

FASTSFT_CLONES void widen_range(const float16* from, float* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

FASTSFT_CLONES void narrow_range(const float* from, bfloat16* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(&to[i], from[i]);
}

FASTSFT_CLONES void narrow_range(const float* from, float16* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(&to[i], from[i]);
}

}  // namespace fastsft::cpu
