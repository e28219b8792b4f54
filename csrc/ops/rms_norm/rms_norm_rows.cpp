#include "ops/rms_norm/rms_norm_rows.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/elements.h"

namespace fastsft::cpu {
namespace {

template <typename T>
FASTSFT_INLINE const T* add_row(const T* x, const T* residual, T* sum, int64_t hidden) {
  if (residual == nullptr) return x;
  for (int64_t j = 0; j < hidden; ++j) store(&sum[j], to_float(x[j]) + to_float(residual[j]));
  return sum;
}

// Terms per float sum. A loop that is not vectorised adds sequentially, and over 24,000 terms that
// loses a decimal digit.
constexpr int64_t kSummed = 1024;

template <typename T>
FASTSFT_INLINE float sum_of_squares(const T* row, int64_t hidden) {
  float squares = 0;
  for (int64_t begin = 0; begin < hidden; begin += kSummed) {
    const int64_t end = std::min(begin + kSummed, hidden);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = begin; j < end; ++j) part += to_float(row[j]) * to_float(row[j]);
    squares += part;
  }
  return squares;
}

template <typename T>
FASTSFT_INLINE float weighted_dot(const T* grad_out, const T* x, const T* weight, float offset,
                                  int64_t hidden) {
  float dot = 0;
  for (int64_t begin = 0; begin < hidden; begin += kSummed) {
    const int64_t end = std::min(begin + kSummed, hidden);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = begin; j < end; ++j) {
      part += to_float(grad_out[j]) * (offset + to_float(weight[j])) * to_float(x[j]);
    }
    dot += part;
  }
  return dot;
}

template <typename T>
FASTSFT_INLINE void forward(const T* x, const T* residual, const T* weight, float eps, T* sum,
                            T* out, float* rstd, int64_t rows, int64_t hidden, float offset) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = i * hidden;
    const T* row =
        add_row(x + at, residual ? residual + at : nullptr, sum ? sum + at : nullptr, hidden);
    const float scale =
        1.0f / std::sqrt(sum_of_squares(row, hidden) / static_cast<float>(hidden) + eps);
    rstd[i] = scale;
    for (int64_t j = 0; j < hidden; ++j) {
      store(&out[at + j], to_float(row[j]) * scale * (offset + to_float(weight[j])));
    }
  }
}

template <bool kWeight, bool kRemake, typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* x, const T* weight, const float* rstd, T* grad_x,
                             float* grad_weight, int64_t rows, int64_t hidden, float offset) {
  for (int64_t i = 0; i < rows; ++i, grad_out += hidden, x += hidden, grad_x += hidden) {
    const float scale = rstd[i];
    const float mean = weighted_dot(grad_out, x, weight, offset, hidden) * scale * scale /
                       static_cast<float>(hidden);
    for (int64_t j = 0; j < hidden; ++j) {
      const float g = to_float(grad_out[j]);
      const float xj = to_float(x[j]);
      if constexpr (kWeight) grad_weight[j] += g * xj * scale;
      const float w = offset + to_float(weight[j]);
      store(&grad_x[j], to_float(grad_x[j]) + scale * (g * w - xj * mean));
      if constexpr (kRemake) store(&grad_out[j], xj * scale * w);
    }
  }
}

template <bool kRemake, typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* x, const T* weight, const float* rstd, T* grad_x,
                             float* grad_weight, int64_t rows, int64_t hidden, float offset) {
  if (grad_weight != nullptr)
    backward<true, kRemake>(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, offset);
  else
    backward<false, kRemake>(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, offset);
}

template <typename T>
FASTSFT_INLINE void backward(T* grad_out, const T* x, const T* weight, const float* rstd, T* grad_x,
                             float* grad_weight, int64_t rows, int64_t hidden, bool recompute,
                             float offset) {
  if (recompute)
    backward<true>(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, offset);
  else
    backward<false>(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, offset);
}

}  // namespace

FASTSFT_CLONES void rms_norm_rows(const float* x, const float* residual, const float* weight,
                                  float eps, float* sum, float* out, float* rstd, int64_t rows,
                                  int64_t hidden, float offset) {
  forward(x, residual, weight, eps, sum, out, rstd, rows, hidden, offset);
}

FASTSFT_CLONES void rms_norm_rows(const bfloat16* x, const bfloat16* residual,
                                  const bfloat16* weight, float eps, bfloat16* sum, bfloat16* out,
                                  float* rstd, int64_t rows, int64_t hidden, float offset) {
  forward(x, residual, weight, eps, sum, out, rstd, rows, hidden, offset);
}

FASTSFT_CLONES void rms_norm_rows(const float16* x, const float16* residual, const float16* weight,
                                  float eps, float16* sum, float16* out, float* rstd, int64_t rows,
                                  int64_t hidden, float offset) {
  forward(x, residual, weight, eps, sum, out, rstd, rows, hidden, offset);
}

FASTSFT_CLONES void rms_norm_backward_rows(float* grad_out, const float* x, const float* weight,
                                           const float* rstd, float* grad_x, float* grad_weight,
                                           int64_t rows, int64_t hidden, bool recompute,
                                           float offset) {
  backward(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, recompute, offset);
}

FASTSFT_CLONES void rms_norm_backward_rows(bfloat16* grad_out, const bfloat16* x,
                                           const bfloat16* weight, const float* rstd,
                                           bfloat16* grad_x, float* grad_weight, int64_t rows,
                                           int64_t hidden, bool recompute, float offset) {
  backward(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, recompute, offset);
}

FASTSFT_CLONES void rms_norm_backward_rows(float16* grad_out, const float16* x,
                                           const float16* weight, const float* rstd,
                                           float16* grad_x, float* grad_weight, int64_t rows,
                                           int64_t hidden, bool recompute, float offset) {
  backward(grad_out, x, weight, rstd, grad_x, grad_weight, rows, hidden, recompute, offset);
}

}  // namespace fastsft::cpu
