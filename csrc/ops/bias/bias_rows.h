#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastsft::cpu {

// x[i, j] += bias[j] for rows of `width` on one thread.
void add_bias_rows(float* x, const float* bias, int64_t rows, int64_t width);
void add_bias_rows(c10::BFloat16* x, const c10::BFloat16* bias, int64_t rows, int64_t width);

// sums[j] += the sum over rows of grad[i, j].
void sum_rows(const float* grad, float* sums, int64_t rows, int64_t width);
void sum_rows(const c10::BFloat16* grad, float* sums, int64_t rows, int64_t width);

}  // namespace fastsft::cpu
