#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastsft::cpu {

// One token's heads, rotated in place; `direction` is 1, or -1 for the inverse. See
// ops/rope/rope.h.
void rope_row(float* x, const float* cos, const float* sin, float direction, int64_t num_heads,
              int64_t half);
void rope_row(c10::BFloat16* x, const float* cos, const float* sin, float direction,
              int64_t num_heads, int64_t half);

}  // namespace fastsft::cpu
