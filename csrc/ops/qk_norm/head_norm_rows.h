#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastsft::cpu {

// The backward pass of rms_norm_rows in place, for `rows` heads of `dim` that are end to end on one
// thread: grad becomes the gradient of x; `grad_weight` [dim] is added to. Formulas in
// ops/qk_norm/qk_norm.h.
void head_norm_backward_rows(float* grad, const float* x, const float* weight, const float* rstd,
                             float* grad_weight, int64_t rows, int64_t dim);
void head_norm_backward_rows(c10::BFloat16* grad, const c10::BFloat16* x,
                             const c10::BFloat16* weight, const float* rstd, float* grad_weight,
                             int64_t rows, int64_t dim);

}  // namespace fastsft::cpu
