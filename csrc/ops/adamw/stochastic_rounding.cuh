#pragma once

#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {

// Computes Philox4x32-10 as in ops/adamw/philox.h.
__device__ inline uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = {high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

__device__ inline uint4 block_words(uint64_t seed, uint64_t step, uint64_t block) {
  return philox({static_cast<unsigned>(block), static_cast<unsigned>(block >> 32),
                 static_cast<unsigned>(step), static_cast<unsigned>(step >> 32)},
                {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)});
}

// Writes the random words of elements [first, first + kWidth). kWidth is 1, or a multiple of 4; in
// that case `first` must be a multiple of 4, too.
template <int kWidth>
__device__ inline void element_words(uint64_t seed, uint64_t step, uint64_t first,
                                     uint32_t* words) {
  if constexpr (kWidth == 1) {
    const uint4 block = block_words(seed, step, first / 4);
    const unsigned place = first % 4;
    words[0] = place == 0 ? block.x : place == 1 ? block.y : place == 2 ? block.z : block.w;
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const uint4 block = block_words(seed, step, (first + i) / 4);
      words[i] = block.x, words[i + 1] = block.y, words[i + 2] = block.z, words[i + 3] = block.w;
    }
  }
}

// Rounds stochastically with the lower 16 bits of `word`, as in ops/adamw/adamw_cpu.cpp.
__device__ inline bfloat16 rounded_stochastically(float value, uint32_t word) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = (bits + (word & 0xFFFFu)) >> 16, quiet = (bits >> 16) | 0x40u;
  return __ushort_as_bfloat16(static_cast<unsigned short>(value == value ? rounded : quiet));
}

}  // namespace fastsft::cuda
