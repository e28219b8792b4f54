#pragma once

#include "ops/adamw/master_halves.cuh"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {

// kWidth neighbours of a master weight, float32 or split, and of its bfloat16 copy.

template <int kWidth>
__device__ inline void load_master(const float* from, const bfloat16*, float* values) {
  load_wide<kWidth>(from, values);
}
template <int kWidth>
__device__ inline void load_master(const int16_t* low, const bfloat16* high, float* values) {
  const auto lower = *reinterpret_cast<const Pack<int16_t, kWidth>*>(low);
  const auto upper = *reinterpret_cast<const Pack<bfloat16, kWidth>*>(high);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = joined(upper.at[i], lower.at[i]);
}

template <int kWidth>
__device__ inline void store_master(float* to, const float* values) {
  store_floats<kWidth>(to, values);
}
template <int kWidth>
__device__ inline void store_master(int16_t* to, const float* values) {
  Pack<int16_t, kWidth> low;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) low.at[i] = lower_half(values[i]);
  *reinterpret_cast<Pack<int16_t, kWidth>*>(to) = low;
}

template <int kWidth>
__device__ inline void store_copy(bfloat16* to, const float* values) {
  Pack<bfloat16, kWidth> high;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) high.at[i] = upper_half(values[i]);
  *reinterpret_cast<Pack<bfloat16, kWidth>*>(to) = high;
}

// What follows an update: `copy` is bfloat16, or with `half_copy` float16; null: none.
template <int kWidth, typename Master>
__device__ inline void store_both(Master* master, bfloat16* copy, bool half_copy,
                                  const float* values) {
  store_master<kWidth>(master, values);
  if (copy == nullptr) return;
  if constexpr (sizeof(Master) == sizeof(float)) {
    if (half_copy) return store_pack<kWidth>(reinterpret_cast<float16*>(copy), values);
  }
  store_copy<kWidth>(copy, values);
}

}  // namespace fastsft::cuda
