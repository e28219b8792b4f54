#pragma once

#include "cuda_runtime_api.h"

struct __nv_bfloat16 {
  unsigned short bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  return __uint_as_float(unsigned{value.bits} << 16);
}
// To nearest, ties to even; every NaN becomes the canonical one, as on the device.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (value != value) return {0x7fff};
  const unsigned bits = __float_as_uint(value);
  return {static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
