#pragma once

#include <cstdint>

#include "ops/cpu/simd.h"

namespace fastsft::cpu {

// Computes Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3),
// four random words that depend on key and counter only. `words` holds the counter and receives the
// result.
FASTSFT_INLINE void philox(uint32_t (&words)[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * words[0];
    const uint64_t second = uint64_t{0xCD9E8D57u} * words[2];
    words[0] = static_cast<uint32_t>(second >> 32) ^ words[1] ^ key0;
    words[1] = static_cast<uint32_t>(second);
    words[2] = static_cast<uint32_t>(first >> 32) ^ words[3] ^ key1;
    words[3] = static_cast<uint32_t>(first);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace fastsft::cpu
