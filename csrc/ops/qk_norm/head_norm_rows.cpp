#include "ops/qk_norm/head_norm_rows.h"

#include "ops/cpu/convert.h"

namespace fastsft::cpu {
namespace {

template <typename T>
FASTSFT_INLINE void backward(T* grad, const T* x, const T* weight, const float* rstd,
                             float* grad_weight, int64_t rows, int64_t dim) {
  for (int64_t i = 0; i < rows; ++i, grad += dim, x += dim) {
    const float scale = rstd[i];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < dim; ++j) {
      dot += to_float(grad[j]) * to_float(weight[j]) * to_float(x[j]);
    }
    const float mean = dot * scale * scale / static_cast<float>(dim);
    for (int64_t j = 0; j < dim; ++j) {
      const float g = to_float(grad[j]), xj = to_float(x[j]);
      grad_weight[j] += g * xj * scale;
      store(&grad[j], scale * (g * to_float(weight[j]) - xj * mean));
    }
  }
}

}  // namespace

FASTSFT_CLONES void head_norm_backward_rows(float* grad, const float* x, const float* weight,
                                            const float* rstd, float* grad_weight, int64_t rows,
                                            int64_t dim) {
  backward(grad, x, weight, rstd, grad_weight, rows, dim);
}

FASTSFT_CLONES void head_norm_backward_rows(bfloat16* grad, const bfloat16* x,
                                            const bfloat16* weight, const float* rstd,
                                            float* grad_weight, int64_t rows, int64_t dim) {
  backward(grad, x, weight, rstd, grad_weight, rows, dim);
}

}  // namespace fastsft::cpu
