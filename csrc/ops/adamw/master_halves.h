#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastsft::cpu {

// A float32 master and its two halves (rule: ops/adamw/adamw.h).
void upper_half(const float* master, c10::BFloat16* high, int64_t count);
void lower_half(const float* master, int16_t* low, int64_t count);
void join_halves(const c10::BFloat16* high, const int16_t* low, float* master, int64_t count);

}  // namespace fastsft::cpu
