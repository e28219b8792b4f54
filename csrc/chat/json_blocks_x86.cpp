#include "chat/json_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>

#define FASTSFT_AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define FASTSFT_AVX512 __attribute__((target("avx512f,avx512bw,bmi,popcnt")))

namespace fastsft {
namespace {

FASTSFT_AVX2 uint32_t bits_equal(__m256i bytes, char character) {
  return static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(character))));
}

FASTSFT_AVX2 void classify_half(const char* text, int shift, JsonBlock& block) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text));
  const __m256i folded = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
  block.quotes |= static_cast<uint64_t>(bits_equal(bytes, '"')) << shift;
  block.backslashes |= static_cast<uint64_t>(bits_equal(bytes, '\\')) << shift;
  block.brackets |= static_cast<uint64_t>(bits_equal(folded, '{') | bits_equal(folded, '}'))
                    << shift;
}

FASTSFT_AVX2 void classify_avx2(const char* text, size_t count, JsonBlock* blocks) {
  for (size_t i = 0; i < count; ++i, text += kJsonBlockSize) {
    blocks[i] = JsonBlock();
    classify_half(text, 0, blocks[i]);
    classify_half(text + 32, 32, blocks[i]);
  }
}

FASTSFT_AVX512 void classify_avx512(const char* text, size_t count, JsonBlock* blocks) {
  for (size_t i = 0; i < count; ++i, text += kJsonBlockSize) {
    const __m512i bytes = _mm512_loadu_si512(text);
    const __m512i folded = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
    blocks[i].quotes = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('"'));
    blocks[i].backslashes = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\\'));
    blocks[i].brackets = _mm512_cmpeq_epi8_mask(folded, _mm512_set1_epi8('{')) |
                         _mm512_cmpeq_epi8_mask(folded, _mm512_set1_epi8('}'));
  }
}

FASTSFT_AVX2 size_t find_special_avx2(const char* text, size_t size, bool* has_wide) {
  size_t at = 0;
  uint32_t wide = 0;
  for (; size - at >= 32; at += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + at));
    const __m256i control =
        _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(0x1F)), bytes);
    const uint32_t special = bits_equal(bytes, '"') | bits_equal(bytes, '\\') |
                             static_cast<uint32_t>(_mm256_movemask_epi8(control));
    const auto high = static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
    if (special != 0) {
      const int first = std::countr_zero(special);
      if ((wide | (high & ((uint32_t{1} << first) - 1))) != 0) *has_wide = true;
      return at + static_cast<size_t>(first);
    }
    wide |= high;
  }
  if (wide != 0) *has_wide = true;
  return at + find_string_special_portable(text + at, size - at, has_wide);
}

}  // namespace

void classify_json(const char* text, size_t count, JsonBlock* blocks) {
  static const auto classify = __builtin_cpu_supports("avx512bw") ? classify_avx512
                               : __builtin_cpu_supports("avx2")   ? classify_avx2
                                                                  : classify_json_portable;
  classify(text, count, blocks);
}

size_t find_string_special(const char* text, size_t size, bool* has_wide) {
  static const auto find =
      __builtin_cpu_supports("avx2") ? find_special_avx2 : find_string_special_portable;
  return find(text, size, has_wide);
}

}  // namespace fastsft
#else
namespace fastsft {

void classify_json(const char* text, size_t count, JsonBlock* blocks) {
  classify_json_portable(text, count, blocks);
}

size_t find_string_special(const char* text, size_t size, bool* has_wide) {
  return find_string_special_portable(text, size, has_wide);
}

}  // namespace fastsft
#endif
