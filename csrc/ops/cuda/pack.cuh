#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fastsft::cuda {

using bfloat16 = __nv_bfloat16;
using float16 = __half;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_float(float16 value) { return __half2float(value); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }
__device__ inline void store(float16* to, float value) { *to = __float2half_rn(value); }
// Returns the value after rounding to T, as it will be read back from memory.
template <typename T>
__device__ inline float rounded(float value) {
  T stored;
  store(&stored, value);
  return to_float(stored);
}

// kWidth neighbouring elements, which are read and written in one access of kWidth * sizeof(T)
// bytes. The address must be aligned to this size.
template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T)) Pack {
  T at[kWidth];
};

template <int kWidth, typename T>
__device__ inline void load_pack(const T* from, float* values) {
  const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(from);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = to_float(pack.at[i]);
}

template <int kWidth, typename T>
__device__ inline void store_pack(T* to, const float* values) {
  Pack<T, kWidth> pack;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) store(&pack.at[i], values[i]);
  *reinterpret_cast<Pack<T, kWidth>*>(to) = pack;
}

// Loads kWidth floats in accesses of at most 16 bytes, for float32 tables that accompany T data.
template <int kWidth>
__device__ inline void load_floats(const float* from, float* values) {
  constexpr int kStep = kWidth < 4 ? kWidth : 4;
#pragma unroll
  for (int i = 0; i < kWidth; i += kStep) load_pack<kStep>(from + i, values + i);
}

template <int kWidth>
__device__ inline void load_wide(const float* from, float* values) {
  load_floats<kWidth>(from, values);
}
template <int kWidth>
__device__ inline void load_wide(const bfloat16* from, float* values) {
  load_pack<kWidth>(from, values);
}

template <int kWidth>
__device__ inline void store_floats(float* to, const float* values) {
  constexpr int kStep = kWidth < 4 ? kWidth : 4;
#pragma unroll
  for (int i = 0; i < kWidth; i += kStep) store_pack<kStep>(to + i, values + i);
}

template <int kWidth>
__device__ inline void store_wide(float* to, const float* values) {
  store_floats<kWidth>(to, values);
}
template <int kWidth>
__device__ inline void store_wide(bfloat16* to, const float* values) {
  store_pack<kWidth>(to, values);
}

}  // namespace fastsft::cuda
