#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace fastsft::cpu {

// rms_norm and its backward for rows [0, rows) on one thread (formulas: ops/rms_norm/rms_norm.h).
// `residual` and `sum` may both be null. The backward adds to `grad_weight` unless it is null. With
// `recompute`, it overwrites grad_out with the forward pass' `out`.
void rms_norm_rows(const float* x, const float* residual, const float* weight, float eps,
                   float* sum, float* out, float* rstd, int64_t rows, int64_t hidden, float offset);
void rms_norm_rows(const c10::BFloat16* x, const c10::BFloat16* residual,
                   const c10::BFloat16* weight, float eps, c10::BFloat16* sum, c10::BFloat16* out,
                   float* rstd, int64_t rows, int64_t hidden, float offset);
void rms_norm_rows(const c10::Half* x, const c10::Half* residual, const c10::Half* weight,
                   float eps, c10::Half* sum, c10::Half* out, float* rstd, int64_t rows,
                   int64_t hidden, float offset);

void rms_norm_backward_rows(float* grad_out, const float* x, const float* weight, const float* rstd,
                            float* grad_x, float* grad_weight, int64_t rows, int64_t hidden,
                            bool recompute, float offset);
void rms_norm_backward_rows(c10::BFloat16* grad_out, const c10::BFloat16* x,
                            const c10::BFloat16* weight, const float* rstd, c10::BFloat16* grad_x,
                            float* grad_weight, int64_t rows, int64_t hidden, bool recompute,
                            float offset);
void rms_norm_backward_rows(c10::Half* grad_out, const c10::Half* x, const c10::Half* weight,
                            const float* rstd, c10::Half* grad_x, float* grad_weight, int64_t rows,
                            int64_t hidden, bool recompute, float offset);

}  // namespace fastsft::cpu
