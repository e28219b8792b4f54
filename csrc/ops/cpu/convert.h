#pragma once

#include <c10/util/BFloat16.h>

#include "ops/cpu/simd.h"

namespace fastsft::cpu {

using bfloat16 = c10::BFloat16;

FASTSFT_INLINE float to_float(float value) { return value; }
FASTSFT_INLINE float to_float(bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.x) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

FASTSFT_INLINE void store(float* to, float value) { *to = value; }
// Round to nearest even; NaN keeps a quiet bit. Without a branch, so that loops vectorise.
FASTSFT_INLINE void store(bfloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  to->x = static_cast<uint16_t>(value == value ? rounded : quiet);
}

}  // namespace fastsft::cpu
