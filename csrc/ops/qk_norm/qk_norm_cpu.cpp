#include "ops/qk_norm/qk_norm.h"

#include <torch/library.h>

#include <algorithm>

#include "ops/cpu/parallel.h"
#include "ops/cpu/row_parts.h"
#include "ops/qk_norm/head_norm_rows.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace fastsft {
namespace {

template <typename T>
void run_qk_norm_forward(const at::Tensor& x, const at::Tensor& weight, int64_t queries,
                         int64_t keys, float eps, const at::Tensor& out, const at::Tensor& rstd) {
  const int64_t width = x.size(1), dim = weight.size(1), heads = queries + keys;
  const T *from = x.data_ptr<T>(), *scale = weight.data_ptr<T>();
  T* to = out.data_ptr<T>();
  at::parallel_for(0, x.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const T* row = from + token * width;
      T* result = to + token * width;
      float* r = rstd.data_ptr<float>() + token * heads;
      cpu::rms_norm_rows(row, nullptr, scale, eps, nullptr, result, r, queries, dim);
      cpu::rms_norm_rows(row + queries * dim, nullptr, scale + dim, eps, nullptr,
                         result + queries * dim, r + queries, keys, dim);
      if (result != row) std::copy(row + heads * dim, row + width, result + heads * dim);
    }
  });
}

template <typename T>
void run_qk_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& rstd, int64_t queries, int64_t keys,
                          const at::Tensor& grad_weight, float beta) {
  const int64_t width = x.size(1), dim = weight.size(1), heads = queries + keys;
  const T* scale = weight.data_ptr<T>();
  cpu::sum_row_parts(x.size(0), grad_weight, beta, [&](int64_t begin, int64_t end, float* part) {
    for (int64_t token = begin; token < end; ++token) {
      T* g = grad.data_ptr<T>() + token * width;
      const T* row = x.data_ptr<T>() + token * width;
      const float* r = rstd.data_ptr<float>() + token * heads;
      cpu::head_norm_backward_rows(g, row, scale, r, part, queries, dim);
      cpu::head_norm_backward_rows(g + queries * dim, row + queries * dim, scale + dim, r + queries,
                                   part + dim, keys, dim);
    }
  });
}

void qk_norm_cpu(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
                 int64_t num_key_value_heads, double eps, const at::Tensor& out,
                 const at::Tensor& rstd) {
  check_qk_norm(x, weight, num_heads, num_key_value_heads, eps, out, rstd);
  const bool wide = x.scalar_type() == at::kFloat;
  (wide ? run_qk_norm_forward<float>
        : run_qk_norm_forward<c10::BFloat16>)(x, weight, num_heads, num_key_value_heads,
                                              static_cast<float>(eps), out, rstd);
}

void qk_norm_backward_cpu(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                          const at::Tensor& grad_weight, double beta) {
  check_qk_norm_backward(grad, x, weight, rstd, num_heads, num_key_value_heads, grad_weight, beta);
  const bool wide = x.scalar_type() == at::kFloat;
  (wide ? run_qk_norm_backward<float>
        : run_qk_norm_backward<c10::BFloat16>)(grad, x, weight, rstd, num_heads,
                                               num_key_value_heads, grad_weight,
                                               static_cast<float>(beta));
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("qk_norm", &qk_norm_cpu);
  m.impl("qk_norm_backward", &qk_norm_backward_cpu);
}

}  // namespace fastsft
