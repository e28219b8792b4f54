#include "ops/qk_norm/qk_norm.h"

#include <torch/library.h>

#include <algorithm>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace fastsft::cpu {
namespace {

template <bool kWeight, typename T>
FASTSFT_INLINE void backward(T* grad, const T* x, const T* weight, const float* rstd,
                             float* grad_weight, int64_t rows, int64_t dim, float offset) {
  for (int64_t i = 0; i < rows; ++i, grad += dim, x += dim) {
    const float scale = rstd[i];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < dim; ++j) {
      dot += to_float(grad[j]) * (offset + to_float(weight[j])) * to_float(x[j]);
    }
    const float mean = dot * scale * scale / static_cast<float>(dim);
    for (int64_t j = 0; j < dim; ++j) {
      const float g = to_float(grad[j]), xj = to_float(x[j]);
      if constexpr (kWeight) grad_weight[j] += g * xj * scale;
      store(&grad[j], scale * (g * (offset + to_float(weight[j])) - xj * mean));
    }
  }
}

template <typename T>
FASTSFT_INLINE void backward(T* grad, const T* x, const T* weight, const float* rstd,
                             float* grad_weight, int64_t rows, int64_t dim, float offset) {
  if (grad_weight != nullptr)
    backward<true>(grad, x, weight, rstd, grad_weight, rows, dim, offset);
  else
    backward<false>(grad, x, weight, rstd, grad_weight, rows, dim, offset);
}

// Does the backward pass of rms_norm_rows in place on one thread, for `rows` contiguous heads of
// `dim` elements. Replaces grad by x's gradient, and adds to `grad_weight` [dim] unless it is null.
FASTSFT_CLONES void head_norm_backward_rows(float* grad, const float* x, const float* weight,
                                            const float* rstd, float* grad_weight, int64_t rows,
                                            int64_t dim, float offset) {
  backward(grad, x, weight, rstd, grad_weight, rows, dim, offset);
}

FASTSFT_CLONES void head_norm_backward_rows(bfloat16* grad, const bfloat16* x,
                                            const bfloat16* weight, const float* rstd,
                                            float* grad_weight, int64_t rows, int64_t dim,
                                            float offset) {
  backward(grad, x, weight, rstd, grad_weight, rows, dim, offset);
}

FASTSFT_CLONES void head_norm_backward_rows(float16* grad, const float16* x, const float16* weight,
                                            const float* rstd, float* grad_weight, int64_t rows,
                                            int64_t dim, float offset) {
  backward(grad, x, weight, rstd, grad_weight, rows, dim, offset);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void qk_norm_cpu(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
                 int64_t num_key_value_heads, double eps, const at::Tensor& out,
                 const at::Tensor& rstd, double offset) {
  check_qk_norm(x, weight, num_heads, num_key_value_heads, eps, out, rstd, offset);
  const int64_t width = x.size(1), dim = weight.size(1), heads = num_heads + num_key_value_heads;
  const int64_t keys = num_heads * dim, rest = heads * dim;  // column at which each begins
  const auto e = static_cast<float>(eps), o = static_cast<float>(offset);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    const T* scale = weight.data_ptr<T>();
    at::parallel_for(0, x.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const T* row = x.data_ptr<T>() + token * width;
        T* result = out.data_ptr<T>() + token * width;
        float* r = rstd.data_ptr<float>() + token * heads;
        cpu::rms_norm_rows(row, nullptr, scale, e, nullptr, result, r, num_heads, dim, o);
        cpu::rms_norm_rows(row + keys, nullptr, scale + dim, e, nullptr, result + keys,
                           r + num_heads, num_key_value_heads, dim, o);
        if (result != row) std::copy(row + rest, row + width, result + rest);
      }
    });
  });
}

void qk_norm_backward_cpu(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                          const std::optional<at::Tensor>& grad_weight, double beta,
                          double offset) {
  check_qk_norm_backward(grad, x, weight, rstd, num_heads, num_key_value_heads, grad_weight, beta,
                         offset);
  const int64_t width = x.size(1), dim = weight.size(1), heads = num_heads + num_key_value_heads;
  const int64_t keys = num_heads * dim;  // column at which the key heads begin
  const auto b = static_cast<float>(beta), o = static_cast<float>(offset);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    const T* scale = weight.data_ptr<T>();
    const auto add_rows = [&](int64_t begin, int64_t end, float* part) {
      for (int64_t token = begin; token < end; ++token) {
        T* g = grad.data_ptr<T>() + token * width;
        const T* row = x.data_ptr<T>() + token * width;
        const float* r = rstd.data_ptr<float>() + token * heads;
        cpu::head_norm_backward_rows(g, row, scale, r, part, num_heads, dim, o);
        cpu::head_norm_backward_rows(g + keys, row + keys, scale + dim, r + num_heads,
                                     part == nullptr ? nullptr : part + dim, num_key_value_heads,
                                     dim, o);
      }
    };
    if (grad_weight) return cpu::sum_row_parts(x.size(0), *grad_weight, b, add_rows);
    at::parallel_for(0, x.size(0), cpu::rows_per_task(width),
                     [&](int64_t begin, int64_t end) { add_rows(begin, end, nullptr); });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("qk_norm", &qk_norm_cpu);
  m.impl("qk_norm_backward", &qk_norm_backward_cpu);
}

}  // namespace fastsft
