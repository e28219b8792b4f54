#include <torch/library.h>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"
#include "ops/fp8/fp8.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/rms_norm_rows.h"

namespace fastsft {
namespace {

template <typename T>
T* data_or_null(const OptionalTensor& tensor) {
  return tensor ? tensor->data_ptr<T>() : nullptr;
}

void rms_norm_cpu(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                  double eps, const OptionalTensor& sum, const at::Tensor& out,
                  const at::Tensor& rstd, double offset) {
  check_rms_norm(x, residual, weight, eps, sum, out, rstd, offset);
  const int64_t hidden = x.size(1);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    const T* r = data_or_null<T>(residual);
    T* s = data_or_null<T>(sum);
    at::parallel_for(0, x.size(0), cpu::rows_per_task(hidden), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * hidden;
      cpu::rms_norm_rows(x.data_ptr<T>() + at, r ? r + at : nullptr, weight.data_ptr<T>(),
                         static_cast<float>(eps), s ? s + at : nullptr, out.data_ptr<T>() + at,
                         rstd.data_ptr<float>() + begin, end - begin, hidden,
                         static_cast<float>(offset));
    });
  });
}

void rms_norm_fp8_cpu(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                      double eps, const OptionalTensor& sum, const at::Tensor& out,
                      const at::Tensor& rstd, const at::Tensor& values, const at::Tensor& scales,
                      bool power_of_2, bool keep, double offset) {
  check_rms_norm_fp8(x, residual, weight, eps, sum, out, rstd, values, scales, power_of_2, keep,
                     offset);
  rms_norm(x, residual, weight, eps, sum, out, rstd, offset);
  fp8_quantize(out, /*rowwise=*/true, power_of_2, values, scales);
}

void rms_norm_backward_cpu(const at::Tensor& grad_out, const at::Tensor& x,
                           const at::Tensor& weight, const at::Tensor& rstd,
                           const at::Tensor& grad_x, const OptionalTensor& grad_weight, double beta,
                           bool recompute, double offset) {
  check_rms_norm_backward(grad_out, x, weight, rstd, grad_x, grad_weight, beta, recompute, offset);
  const int64_t rows = x.size(0), hidden = x.size(1);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    const auto add_rows = [&](int64_t begin, int64_t end, float* part) {
      const int64_t at = begin * hidden;
      cpu::rms_norm_backward_rows(grad_out.data_ptr<T>() + at, x.data_ptr<T>() + at,
                                  weight.data_ptr<T>(), rstd.data_ptr<float>() + begin,
                                  grad_x.data_ptr<T>() + at, part, end - begin, hidden, recompute,
                                  static_cast<float>(offset));
    };
    if (grad_weight)
      return cpu::sum_row_parts(rows, *grad_weight, static_cast<float>(beta), add_rows);
    at::parallel_for(0, rows, cpu::rows_per_task(hidden),
                     [&](int64_t begin, int64_t end) { add_rows(begin, end, nullptr); });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("rms_norm", &rms_norm_cpu);
  m.impl("rms_norm_fp8", &rms_norm_fp8_cpu);
  m.impl("rms_norm_backward", &rms_norm_backward_cpu);
}

}  // namespace fastsft
