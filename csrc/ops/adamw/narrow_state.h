#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace fastsft::cpu {

// A float32 master and its two halves (rule: ops/adamw/adamw.h).
void upper_half(const float* master, c10::BFloat16* high, int64_t count);
// To nearest even.
void round_range(const float* from, c10::Half* to, int64_t count);
void lower_half(const float* master, int16_t* low, int64_t count);
void join_halves(const c10::BFloat16* high, const int16_t* low, float* master, int64_t count);

// A random word for each of elements [first, first + count) of a step (rule: ops/adamw/adamw.h).
// `words` has room for count + 6; returns where the first element's word is.
const uint32_t* element_words(int64_t seed, int64_t step, int64_t first, int64_t count,
                              uint32_t* words);

// To one of the two bfloat16 neighbours, with a probability that makes the mean exact; NaN stays
// NaN. The 16 random bits of an element begin at bit `shift` of its word.
void round_stochastically(const float* from, const uint32_t* words, int shift, c10::BFloat16* to,
                          int64_t count);

}  // namespace fastsft::cpu
