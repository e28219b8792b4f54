#include "ops/adamw/stochastic_rounding.h"

#include "ops/adamw/philox.h"
#include "ops/cpu/convert.h"

namespace fastsft::cpu {
namespace {

FASTSFT_CLONES void fill_blocks(uint64_t seed, uint64_t step, uint64_t first, int64_t blocks,
                                uint32_t* words) {
#pragma omp simd
  for (int64_t i = 0; i < blocks; ++i) {
    const uint64_t block = first + static_cast<uint64_t>(i);
    uint32_t values[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                          static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
    philox(values, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    for (int word = 0; word < 4; ++word) words[4 * i + word] = values[word];
  }
}

}  // namespace

const uint32_t* element_words(int64_t seed, int64_t step, int64_t first, int64_t count,
                              uint32_t* words) {
  const int64_t begin = first / 4, end = (first + count + 3) / 4;
  fill_blocks(static_cast<uint64_t>(seed), static_cast<uint64_t>(step),
              static_cast<uint64_t>(begin), end - begin, words);
  return words + first % 4;
}

FASTSFT_CLONES void round_stochastically(const float* from, const uint32_t* words, int shift,
                                         c10::BFloat16* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &from[i], sizeof bits);
    const uint32_t rounded = (bits + ((words[i] >> shift) & 0xFFFFu)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    to[i].x = static_cast<uint16_t>(from[i] == from[i] ? rounded : quiet);
  }
}

}  // namespace fastsft::cpu
