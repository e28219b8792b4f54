#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "ops/cpu/parallel.h"
#include "ops/cpu/rms_norm_rows.h"
#include "ops/rms_norm.h"

namespace fastsft {
namespace {

template <typename T>
T* data_or_null(const OptionalTensor& tensor) {
  return tensor ? tensor->data_ptr<T>() : nullptr;
}

template <typename T>
void forward(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
             float eps, const OptionalTensor& sum, const at::Tensor& out, const at::Tensor& rstd) {
  const int64_t hidden = x.size(1);
  const T* r = data_or_null<T>(residual);
  T* s = data_or_null<T>(sum);
  at::parallel_for(0, x.size(0), cpu::rows_per_task(hidden), [&](int64_t begin, int64_t end) {
    const int64_t at = begin * hidden;
    cpu::rms_norm_rows(x.data_ptr<T>() + at, r ? r + at : nullptr, weight.data_ptr<T>(), eps,
                       s ? s + at : nullptr, out.data_ptr<T>() + at, rstd.data_ptr<float>() + begin,
                       end - begin, hidden);
  });
}

// Each task sums its rows' weight gradient apart; the parts are added in order.
template <typename T>
void backward(const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& weight,
              const at::Tensor& rstd, const at::Tensor& grad_x, const at::Tensor& grad_weight,
              float beta) {
  const int64_t rows = x.size(0), hidden = x.size(1);
  const int64_t tasks = at::get_num_threads();
  const at::Tensor parts = at::zeros({tasks, hidden}, grad_weight.options());
  at::parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t begin = rows * task / tasks, end = rows * (task + 1) / tasks;
      const int64_t at = begin * hidden;
      cpu::rms_norm_backward_rows(grad_out.data_ptr<T>() + at, x.data_ptr<T>() + at,
                                  weight.data_ptr<T>(), rstd.data_ptr<float>() + begin,
                                  grad_x.data_ptr<T>() + at,
                                  parts.data_ptr<float>() + task * hidden, end - begin, hidden);
    }
  });
  if (beta == 0)
    grad_weight.zero_();
  else
    grad_weight.mul_(beta);
  grad_weight.add_(parts.sum(0));
}

void rms_norm_cpu(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                  double eps, const OptionalTensor& sum, const at::Tensor& out,
                  const at::Tensor& rstd) {
  check_rms_norm(x, residual, weight, eps, sum, out, rstd);
  const bool wide = x.scalar_type() == at::kFloat;
  (wide ? forward<float> : forward<c10::BFloat16>)(x, residual, weight, static_cast<float>(eps),
                                                   sum, out, rstd);
}

void rms_norm_backward_cpu(const at::Tensor& grad_out, const at::Tensor& x,
                           const at::Tensor& weight, const at::Tensor& rstd,
                           const at::Tensor& grad_x, const at::Tensor& grad_weight, double beta) {
  check_rms_norm_backward(grad_out, x, weight, rstd, grad_x, grad_weight, beta);
  const bool wide = x.scalar_type() == at::kFloat;
  (wide ? backward<float> : backward<c10::BFloat16>)(grad_out, x, weight, rstd, grad_x, grad_weight,
                                                     static_cast<float>(beta));
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("rms_norm", &rms_norm_cpu);
  m.impl("rms_norm_backward", &rms_norm_backward_cpu);
}

}  // namespace fastsft
