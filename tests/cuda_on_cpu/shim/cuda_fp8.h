#pragma once

#include <cmath>

#include "cuda_runtime_api.h"

using __nv_fp8_storage_t = unsigned char;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

// To nearest, ties to even, and to the largest finite number beyond it; every NaN becomes the
// canonical one, as on the device. By scaling and rounding to an integer: another way than the CPU
// op's.
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t,
                                                __nv_fp8_interpretation_t format) {
  const bool wide = format == __NV_E5M2;
  const int mantissa_bits = wide ? 2 : 3, bias = wide ? 15 : 7;
  const float limit = wide ? 57344.0f : 448.0f;
  if (value != value) return 0x7f;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const float size = std::fmin(std::fabs(value), limit);
  if (size == 0) return static_cast<__nv_fp8_storage_t>(sign);
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, mantissa_bits - exponent)));
  // `steps` has the leading one of normal numbers; a carry moves on to the next exponent.
  const int bits = ((exponent + bias - 1) << mantissa_bits) + steps;
  return static_cast<__nv_fp8_storage_t>(sign | bits);
}
