#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "ops/cpu/simd.h"

namespace fastsft::cpu {

using bfloat16 = c10::BFloat16;
using float16 = c10::Half;

FASTSFT_INLINE float to_float(float value) { return value; }
FASTSFT_INLINE float to_float(bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.x) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

FASTSFT_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
FASTSFT_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Converts by shifting exponent and mantissa to float32's positions and rebiasing the exponent.
// Infinity and NaN get the highest exponent. For a subnormal value, adding 0.5 puts the value into
// the low mantissa bits, and subtracting 0.5 normalises it.
FASTSFT_INLINE float to_float(float16 value) {
  const uint32_t bits = value.x;
  const uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7FFFu;
  const uint32_t normal = (rest << 13) + (rest >= 0x7C00u ? 224u << 23 : 112u << 23);
  const uint32_t subnormal = bits_of(float_of(0x3F000000u | rest) - 0.5f);
  return float_of(sign | (rest < 0x400u ? subnormal : normal));
}

FASTSFT_INLINE void store(float* to, float value) { *to = value; }
// Rounds to nearest even; NaN becomes a quiet NaN. The code has no branches, so loops vectorise.
FASTSFT_INLINE void store(bfloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  to->x = static_cast<uint16_t>(value == value ? rounded : quiet);
}
// Rounds to nearest even; NaN becomes a quiet NaN. Integer arithmetic rounds normal values.
// Subnormal values are rounded by adding 0.5, whose last mantissa bit has the value of the result's
// last bit. Values from 65,520 on become infinite.
FASTSFT_INLINE void store(float16* to, float value) {
  const uint32_t all = bits_of(value), bits = all & 0x7FFFFFFFu;
  const uint32_t normal = (bits - (112u << 23) + 0xFFFu + ((bits >> 13) & 1u)) >> 13;
  const uint32_t subnormal = bits_of(float_of(bits) + 0.5f) - 0x3F000000u;
  const uint32_t special = bits > 0x7F800000u ? 0x7E00u : 0x7C00u;
  const uint32_t finite = bits < (113u << 23) ? subnormal : normal;
  const uint32_t result = bits >= 0x477FF000u ? special : finite;
  to->x = static_cast<uint16_t>((all >> 16 & 0x8000u) | result);
}

// Calls run<T>() for a dtype that `check_compute_dtype` accepts.
template <typename Run>
void dispatch(c10::ScalarType dtype, const Run& run) {
  if (dtype == c10::ScalarType::Float)
    run.template operator()<float>();
  else if (dtype == c10::ScalarType::Half)
    run.template operator()<float16>();
  else
    run.template operator()<bfloat16>();
}

}  // namespace fastsft::cpu
