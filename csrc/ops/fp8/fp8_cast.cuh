#pragma once

#include <cuda_fp8.h>

#include "ops/cuda/pack.cuh"
#include "ops/fp8/fp8_launch.h"

namespace fastsft::cuda {

// The rule of ops/fp8/fp8.h for a value, a row or a matrix.

// Returns the larger of `most` and the values' magnitudes. NaN counts as infinite: fmaxf would
// leave it out.
template <int kWidth>
__device__ inline float larger_magnitude(float most, const float* values) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float size = fabsf(values[i]);
    most = fmaxf(most, size == size ? size : __uint_as_float(0x7f800000u));
  }
  return most;
}

// Returns what values are multiplied by before they are rounded.
__device__ inline float fp8_factor(float amax, bool e5m2, bool power_of_2) {
  const double size = fmax(static_cast<double>(amax), 1e-12);
  const auto exact = static_cast<float>((e5m2 ? 57344.0 : 448.0) / size);
  return power_of_2 ? __uint_as_float(__float_as_uint(exact) & 0xff800000u) : exact;
}

__device__ inline uint8_t to_fp8(float value, bool e5m2) {
  return e5m2 ? __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2)
              : __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

template <int kWidth>
__device__ inline void store_fp8(uint8_t* to, const float* values, float factor, bool e5m2) {
  Pack<uint8_t, kWidth> bytes;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) bytes.at[i] = to_fp8(values[i] * factor, e5m2);
  *reinterpret_cast<Pack<uint8_t, kWidth>*>(to) = bytes;
}

// Returns the factor of a row of Fp8Rows whose largest magnitude is `amax`, and writes its scale.
__device__ inline float fp8_row_factor(const Fp8Rows& rows, int64_t row, float amax) {
  const float factor = fp8_factor(amax, /*e5m2=*/false, rows.power_of_2);
  if (threadIdx.x == 0) rows.scales[row] = 1.0f / factor;
  return factor;
}

}  // namespace fastsft::cuda
