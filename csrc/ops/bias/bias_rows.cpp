#include "ops/bias/bias_rows.h"

#include "ops/cpu/convert.h"

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

}  // namespace

FASTSFT_CLONES void add_bias_rows(float* x, const float* bias, int64_t rows, int64_t width) {
  add(x, bias, rows, width);
}

FASTSFT_CLONES void add_bias_rows(bfloat16* x, const bfloat16* bias, int64_t rows, int64_t width) {
  add(x, bias, rows, width);
}

FASTSFT_CLONES void sum_rows(const float* grad, float* sums, int64_t rows, int64_t width) {
  sum(grad, sums, rows, width);
}

FASTSFT_CLONES void sum_rows(const bfloat16* grad, float* sums, int64_t rows, int64_t width) {
  sum(grad, sums, rows, width);
}

}  // namespace fastsft::cpu
