#include <bit>
#include <cstring>
#include <vector>

#include "tokenizer/sentencepiece/word_starts.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastsft {
namespace {

using Finder = void (*)(const char*, size_t, ByteMasks*);
constexpr char kSpaceByte = ' ';
constexpr char kLeadByte = '\xE2';

// The lowest bit of each byte that equals `wanted`, gathered into eight bits.
uint64_t find_in_word(uint64_t word, char wanted) {
  constexpr uint64_t kLow = 0x0101010101010101ull;
  constexpr uint64_t kSeven = 0x7F7F7F7F7F7F7F7Full;
  const uint64_t zeros = word ^ (kLow * static_cast<unsigned char>(wanted));
  const uint64_t found = ~(((zeros & kSeven) + kSeven) | zeros | kSeven);
  return ((found >> 7) * 0x0102040810204080ull) >> 56;
}

void find_portably(const char* bytes, size_t count, ByteMasks* masks) {
  static_assert(std::endian::native == std::endian::little, "bit 0 must be the first byte");
  for (size_t block = 0; block < count; ++block) {
    ByteMasks found;
    for (size_t part = 0; part < 8; ++part) {
      uint64_t word;
      std::memcpy(&word, bytes + block * kBlockSize + part * 8, 8);
      found.spaces |= find_in_word(word, kSpaceByte) << (8 * part);
      found.leads |= find_in_word(word, kLeadByte) << (8 * part);
    }
    masks[block] = found;
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) uint64_t compare_avx2(__m256i low, __m256i high, char wanted) {
  const __m256i all = _mm256_set1_epi8(wanted);
  const auto first = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, all)));
  const auto second = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, all)));
  return static_cast<uint64_t>(second) << 32 | first;
}

__attribute__((target("avx2"))) void find_avx2(const char* bytes, size_t count, ByteMasks* masks) {
  for (size_t block = 0; block < count; ++block) {
    const auto* from = reinterpret_cast<const __m256i*>(bytes + block * kBlockSize);
    const __m256i low = _mm256_loadu_si256(from);
    const __m256i high = _mm256_loadu_si256(from + 1);
    masks[block] = {compare_avx2(low, high, kSpaceByte), compare_avx2(low, high, kLeadByte)};
  }
}

__attribute__((target("avx512f,avx512bw"))) void find_avx512(const char* bytes, size_t count,
                                                             ByteMasks* masks) {
  for (size_t block = 0; block < count; ++block) {
    const __m512i all = _mm512_loadu_si512(bytes + block * kBlockSize);
    masks[block] = {_mm512_cmpeq_epi8_mask(all, _mm512_set1_epi8(kSpaceByte)),
                    _mm512_cmpeq_epi8_mask(all, _mm512_set1_epi8(kLeadByte))};
  }
}

#endif

const std::vector<Finder>& finders() {
  static const std::vector<Finder> found = [] {
    std::vector<Finder> all = {&find_portably};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) all.push_back(&find_avx2);
    if (__builtin_cpu_supports("avx512bw")) all.push_back(&find_avx512);
#endif
    return all;
  }();
  return found;
}

}  // namespace

void find_bytes(const char* bytes, size_t count, ByteMasks* masks) {
  static const Finder best = finders().back();
  best(bytes, count, masks);
}

size_t num_mask_finders() { return finders().size(); }

void find_bytes_by(size_t finder, const char* bytes, size_t count, ByteMasks* masks) {
  finders().at(finder)(bytes, count, masks);
}

}  // namespace fastsft
