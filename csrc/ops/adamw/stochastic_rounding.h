#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace fastsft::cpu {

// A random word for each of elements [first, first + count) of a step (rule: ops/adamw/adamw.h).
// `words` has room for count + 6; returns where the first element's word is.
const uint32_t* element_words(int64_t seed, int64_t step, int64_t first, int64_t count,
                              uint32_t* words);

// To one of the two bfloat16 neighbours, with a probability that makes the mean exact; NaN stays
// NaN. The 16 random bits of an element begin at bit `shift` of its word.
void round_stochastically(const float* from, const uint32_t* words, int shift, c10::BFloat16* to,
                          int64_t count);

}  // namespace fastsft::cpu
