#include "ops/adamw/master_halves.h"

#include "ops/cpu/simd.h"

namespace fastsft::cpu {

FASTSFT_CLONES void upper_half(const float* master, c10::BFloat16* high, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &master[i], sizeof bits);
    const uint32_t rounded = (bits + 0x8000u) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    high[i].x = static_cast<uint16_t>(master[i] == master[i] ? rounded : quiet);
  }
}

FASTSFT_CLONES void lower_half(const float* master, int16_t* low, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &master[i], sizeof bits);
    low[i] = static_cast<int16_t>(bits & 0xFFFFu);
  }
}

FASTSFT_CLONES void join_halves(const c10::BFloat16* high, const int16_t* low, float* master,
                                int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = (static_cast<uint32_t>(high[i].x) << 16) +
                          static_cast<uint32_t>(static_cast<int32_t>(low[i]));
    std::memcpy(&master[i], &bits, sizeof bits);
  }
}

}  // namespace fastsft::cpu
