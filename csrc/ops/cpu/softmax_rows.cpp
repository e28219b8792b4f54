#include "ops/cpu/softmax_rows.h"

#include <cmath>
#include <limits>

#include "ops/cpu/simd.h"

namespace fastsft::cpu {
namespace {

FASTSFT_INLINE float maximum(const float* row, int64_t count) {
  float result = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : result)
  for (int64_t i = 0; i < count; ++i) result = row[i] > result ? row[i] : result;
  return result;
}

FASTSFT_INLINE float plain_sum(const float* row, int64_t count) {
  float result = 0;
#pragma omp simd reduction(+ : result)
  for (int64_t i = 0; i < count; ++i) result += row[i];
  return result;
}

// Sets row = exp(scale * row - shift); returns the sum.
FASTSFT_INLINE float exponentials(float* row, int64_t count, float scale, float shift) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    row[i] = exp_approx(scale * row[i] - shift);
    sum += row[i];
  }
  return sum;
}

FASTSFT_INLINE void scale_and_shift(float* row, int64_t count, float scale, float shift) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) row[i] = row[i] * scale - shift;
}

FASTSFT_INLINE void cap(float* row, int64_t count, float scale, float bound) {
  const float inner = scale / bound;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) row[i] = bound * tanh_approx(inner * row[i]);
}

}  // namespace

FASTSFT_CLONES double cross_entropy_row(float* logits, int64_t vocab, int64_t target, float weight,
                                        float smoothing, bool gradient) {
  const float highest = maximum(logits, vocab), at_target = logits[target];
  // The maximum ignores NaN, but this sum does not. It also gives the mean for label smoothing.
  const float mean = plain_sum(logits, vocab) / static_cast<float>(vocab);
  const float sum = exponentials(logits, vocab, 1.0f, highest);
  const double log_sum = static_cast<double>(highest) + std::log(static_cast<double>(sum));
  const double loss = (1.0 - smoothing) * (log_sum - at_target) + smoothing * (log_sum - mean);
  if (gradient) {
    scale_and_shift(logits, vocab, weight / sum, weight * smoothing / static_cast<float>(vocab));
    logits[target] -= weight * (1.0f - smoothing);
  }
  const bool broken = std::isnan(mean);
  return broken ? std::numeric_limits<double>::quiet_NaN() : weight * loss;
}

FASTSFT_CLONES double capped_cross_entropy_row(float* logits, int64_t vocab, int64_t target,
                                               float weight, float smoothing, float softcap,
                                               bool gradient) {
  cap(logits, vocab, 1.0f, softcap);
  const float highest = maximum(logits, vocab), at_target = logits[target];
  const float mean = plain_sum(logits, vocab) / static_cast<float>(vocab);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < vocab; ++i) sum += exp_approx(logits[i] - highest);
  const double log_sum = static_cast<double>(highest) + std::log(static_cast<double>(sum));
  const double loss = (1.0 - smoothing) * (log_sum - at_target) + smoothing * (log_sum - mean);
  if (gradient) {
    const float scale = weight / sum, shift = weight * smoothing / static_cast<float>(vocab);
    const float inverse = 1.0f / softcap;
#pragma omp simd
    for (int64_t i = 0; i < vocab; ++i) {
      const float t = logits[i] * inverse;
      logits[i] = (scale * exp_approx(logits[i] - highest) - shift) * (1.0f - t * t);
    }
    const float t = at_target * inverse;
    logits[target] -= weight * (1.0f - smoothing) * (1.0f - t * t);
  }
  const bool broken = std::isnan(mean);
  return broken ? std::numeric_limits<double>::quiet_NaN() : weight * loss;
}

FASTSFT_CLONES void cap_row(float* row, int64_t count, float scale, float bound, float* slopes) {
  cap(row, count, scale, bound);
  if (slopes == nullptr) return;
  const float inverse = 1.0f / bound;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float t = row[i] * inverse;
    slopes[i] = 1.0f - t * t;
  }
}

FASTSFT_CLONES float softmax_row(float* row, int64_t count, float scale) {
  const float highest = maximum(row, count) * scale;
  const float sum = exponentials(row, count, scale, highest);
  scale_and_shift(row, count, 1.0f / sum, 0.0f);
  return highest + std::log(sum);
}

FASTSFT_CLONES void probabilities_row(float* row, int64_t count, float scale, float log_sum) {
  exponentials(row, count, scale, log_sum);
}

FASTSFT_CLONES void softmax_backward_row(const float* p, float* grad_p, int64_t count, float dot,
                                         float scale, const float* slopes) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) grad_p[i] = p[i] * (grad_p[i] - dot) * scale;
  if (slopes == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) grad_p[i] *= slopes[i];
}

FASTSFT_CLONES float dot_row(const float* a, const float* b, int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace fastsft::cpu
