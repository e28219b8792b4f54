#include "ops/bias/bias.h"

#include <torch/library.h>

#include "ops/cpu/elements.h"
#include "ops/cpu/parallel.h"

namespace fastsft::cpu {
namespace {

template <typename T>
FASTSFT_INLINE void add(T* x, const T* bias, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, x += width) {
    for (int64_t j = 0; j < width; ++j) store(&x[j], to_float(x[j]) + to_float(bias[j]));
  }
}

template <typename T>
FASTSFT_INLINE void sum(const T* grad, float* sums, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i, grad += width) {
    for (int64_t j = 0; j < width; ++j) sums[j] += to_float(grad[j]);
  }
}

// Adds bias[j] to x[i, j] for rows of `width` elements, on one thread.
FASTSFT_CLONES void add_bias_rows(float* x, const float* bias, int64_t rows, int64_t width) {
  add(x, bias, rows, width);
}

FASTSFT_CLONES void add_bias_rows(bfloat16* x, const bfloat16* bias, int64_t rows, int64_t width) {
  add(x, bias, rows, width);
}

FASTSFT_CLONES void add_bias_rows(float16* x, const float16* bias, int64_t rows, int64_t width) {
  add(x, bias, rows, width);
}

// Adds the sum over rows of grad[i, j] to sums[j].
FASTSFT_CLONES void sum_rows(const float* grad, float* sums, int64_t rows, int64_t width) {
  sum(grad, sums, rows, width);
}

FASTSFT_CLONES void sum_rows(const bfloat16* grad, float* sums, int64_t rows, int64_t width) {
  sum(grad, sums, rows, width);
}

FASTSFT_CLONES void sum_rows(const float16* grad, float* sums, int64_t rows, int64_t width) {
  sum(grad, sums, rows, width);
}

}  // namespace
}  // namespace fastsft::cpu

namespace fastsft {
namespace {

void add_bias_cpu(const at::Tensor& x, const at::Tensor& bias) {
  check_add_bias(x, bias);
  const int64_t width = x.size(1);
  cpu::dispatch(x.scalar_type(), [&]<typename T>() {
    at::parallel_for(0, x.size(0), cpu::rows_per_task(width), [&](int64_t begin, int64_t end) {
      cpu::add_bias_rows(x.data_ptr<T>() + begin * width, bias.data_ptr<T>(), end - begin, width);
    });
  });
}

void bias_backward_cpu(const at::Tensor& grad, const at::Tensor& grad_bias, double beta) {
  check_bias_backward(grad, grad_bias, beta);
  const int64_t rows = grad.size(0), width = grad.size(1);
  cpu::dispatch(grad.scalar_type(), [&]<typename T>() {
    cpu::sum_row_parts(
        rows, grad_bias, static_cast<float>(beta), [&](int64_t begin, int64_t end, float* part) {
          cpu::sum_rows(grad.data_ptr<T>() + begin * width, part, end - begin, width);
        });
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CPU, m) {
  m.impl("add_bias", &add_bias_cpu);
  m.impl("bias_backward", &bias_backward_cpu);
}

}  // namespace fastsft
