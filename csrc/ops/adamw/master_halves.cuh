#pragma once

#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {

// A float32 master and its two halves (rule: ops/adamw/adamw.h).
__device__ inline bfloat16 upper_half(float master) {
  const unsigned bits = __float_as_uint(master);
  const unsigned rounded = (bits + 0x8000u) >> 16, quiet = (bits >> 16) | 0x40u;
  return __ushort_as_bfloat16(static_cast<unsigned short>(master == master ? rounded : quiet));
}

__device__ inline int16_t lower_half(float master) {
  return static_cast<int16_t>(__float_as_uint(master) & 0xFFFFu);
}

__device__ inline float joined(bfloat16 high, int16_t low) {
  const unsigned upper = static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
  return __uint_as_float(upper + static_cast<unsigned>(static_cast<int>(low)));
}

}  // namespace fastsft::cuda
