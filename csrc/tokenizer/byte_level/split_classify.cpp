#include <array>

#include "tokenizer/byte_level/split_blocks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastsft {
namespace {

enum : uint8_t {
  kLetter = 1,
  kDigit = 2,
  kSpaceBit = 4,
  kNewline = 8,
  kBlank = 16,
  kQuote = 32,
  kHigh = 64
};

constexpr std::array<uint8_t, 256> kClasses = [] {
  std::array<uint8_t, 256> classes{};
  for (int byte = 0; byte < 256; ++byte) {
    const int lower = byte | 0x20;
    if (byte >= 128) classes[byte] = kHigh;
    if (byte < 128 && lower >= 'a' && lower <= 'z') classes[byte] = kLetter;
    if (byte >= '0' && byte <= '9') classes[byte] = kDigit;
    if (byte >= '\t' && byte <= '\r') classes[byte] = kSpaceBit;
  }
  classes['\n'] = classes['\r'] = kSpaceBit | kNewline;
  classes[' '] = kSpaceBit | kBlank;
  classes['\''] = kQuote;
  return classes;
}();

#if defined(__x86_64__)

// Comparisons of bytes are signed, so bytes of 128 and more are below everything.
__attribute__((target("avx2"))) void classify_avx2(const char* bytes, ClassMasks& masks) {
  ClassMasks found;
  for (int half = 0; half < 2; ++half) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32 * half));
    const auto within = [&](__m256i value, char first, char last) __attribute__((target("avx2"))) {
      return _mm256_and_si256(_mm256_cmpgt_epi8(value, _mm256_set1_epi8(first - 1)),
                              _mm256_cmpgt_epi8(_mm256_set1_epi8(last + 1), value));
    };
    const auto equals = [&](char byte) __attribute__((target("avx2"))) {
      return _mm256_cmpeq_epi8(v, _mm256_set1_epi8(byte));
    };
    const auto add = [&](__m256i set, uint64_t & mask) __attribute__((target("avx2"))) {
      mask |= static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(set))) << 32 * half;
    };
    const __m256i blanks = equals(' ');
    add(within(_mm256_or_si256(v, _mm256_set1_epi8(0x20)), 'a', 'z'), found.letters);
    add(within(v, '0', '9'), found.digits);
    add(_mm256_or_si256(blanks, within(v, '\t', '\r')), found.spaces);
    add(_mm256_or_si256(equals('\n'), equals('\r')), found.newlines);
    add(blanks, found.blanks);
    add(equals('\''), found.quotes);
    add(v, found.high);
  }
  masks = found;
}

__attribute__((target("avx512f,avx512bw"))) void classify_avx512(const char* bytes,
                                                                 ClassMasks& masks) {
  const __m512i v = _mm512_loadu_si512(bytes);
  const __m512i lower = _mm512_or_si512(v, _mm512_set1_epi8(0x20));
  const __m512i from_a = _mm512_sub_epi8(lower, _mm512_set1_epi8('a'));
  const __m512i from_0 = _mm512_sub_epi8(v, _mm512_set1_epi8('0'));
  const __m512i from_tab = _mm512_sub_epi8(v, _mm512_set1_epi8('\t'));
  masks.high = _mm512_movepi8_mask(v);
  masks.letters = _mm512_cmplt_epu8_mask(from_a, _mm512_set1_epi8(26));
  masks.digits = _mm512_cmplt_epu8_mask(from_0, _mm512_set1_epi8(10));
  masks.blanks = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' '));
  masks.spaces = masks.blanks | _mm512_cmplt_epu8_mask(from_tab, _mm512_set1_epi8(5));
  masks.newlines = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\n')) |
                   _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\r'));
  masks.quotes = _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\''));
}

#endif

}  // namespace

void classify_bytes(const char* bytes, ClassMasks& masks) {
  ClassMasks found;
  for (int i = 0; i < 64; ++i) {
    const uint64_t flags = kClasses[static_cast<uint8_t>(bytes[i])];
    found.letters |= (flags & 1) << i;
    found.digits |= (flags >> 1 & 1) << i;
    found.spaces |= (flags >> 2 & 1) << i;
    found.newlines |= (flags >> 3 & 1) << i;
    found.blanks |= (flags >> 4 & 1) << i;
    found.quotes |= (flags >> 5 & 1) << i;
    found.high |= (flags >> 6 & 1) << i;
  }
  masks = found;
}

ClassifyBytes find_classifier() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw")) return classify_avx512;
  if (__builtin_cpu_supports("avx2")) return classify_avx2;
#endif
  return classify_bytes;
}

}  // namespace fastsft
