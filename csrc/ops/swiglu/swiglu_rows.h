#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastsft::cpu {

// Rows of swiglu and its backward on one thread; see ops/swiglu/swiglu.h.
void swiglu_rows(const float* gate_up, float* out, int64_t rows, int64_t width);
void swiglu_rows(const c10::BFloat16* gate_up, c10::BFloat16* out, int64_t rows, int64_t width);
void swiglu_backward_rows(const float* grad_out, const float* gate_up, float* grad_gate_up,
                          int64_t rows, int64_t width);
void swiglu_backward_rows(const c10::BFloat16* grad_out, const c10::BFloat16* gate_up,
                          c10::BFloat16* grad_gate_up, int64_t rows, int64_t width);

}  // namespace fastsft::cpu
