#pragma once

#include <bit>

#include "cuda_runtime_api.h"

struct __half {
  unsigned short bits;
};

inline float __half2float(__half value) {
  return static_cast<float>(std::bit_cast<_Float16>(value.bits));
}
// To nearest, ties to even; every NaN becomes the canonical one, as on the device.
inline __half __float2half_rn(float value) {
  if (value != value) return {0x7fff};
  return {std::bit_cast<unsigned short>(static_cast<_Float16>(value))};
}
