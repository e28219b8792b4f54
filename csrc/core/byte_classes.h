#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastsft {

inline constexpr size_t kByteBlock = 64;

// The bytes [first, last]: a single byte, an ASCII range, or [0x80, 0xFF]. With `folded`, byte |
// 0x20 is compared, so that letters match in either case.
struct ByteRange {
  unsigned char first, last;
  bool folded = false;
};

// The union of one or two byte ranges.
struct ByteSet {
  constexpr ByteSet(ByteRange range) : a(range), b(range) {}
  constexpr ByteSet(ByteRange one, ByteRange other) : a(one), b(other), is_pair(true) {}
  static constexpr ByteSet of(char byte) {
    const auto code = static_cast<unsigned char>(byte);
    return ByteSet(ByteRange{code, code});
  }
  static constexpr ByteSet of(char one, char other) { return {of(one).a, of(other).a}; }

  ByteRange a, b;
  bool is_pair = false;
};

// Classifies the bytes in 64-byte blocks by `kSets`. The result has a mask per set, bit i for byte
// i, as the members of the aggregate `Masks`. The implementations differ only in their
// instructions.
template <typename Masks, ByteSet... kSets>
class ByteClassifier {
 public:
  // A function that writes the masks of `count` blocks that begin at `bytes`.
  using Function = void (*)(const char* bytes, size_t count, Masks* masks);

  // Returns the implementations that this machine can run, the fastest last. The first is portable.
  static const std::vector<Function>& functions() {
    static const std::vector<Function> found = [] {
      std::vector<Function> all = {&classify_portably};
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2")) all.push_back(&classify_avx2);
      if (__builtin_cpu_supports("avx512bw")) all.push_back(&classify_avx512);
#endif
      return all;
    }();
    return found;
  }
  static Function fastest() { return functions().back(); }

 private:
  static constexpr uint64_t kLow = 0x0101010101010101ull;
  static constexpr uint64_t kHigh = 0x8080808080808080ull;

  // Returns a word with the high bit set for each byte of `word` that is in the range.
  template <ByteRange kRange>
  static uint64_t find_in_word(uint64_t word) {
    static_assert((kRange.first < 0x80) == (kRange.last < 0x80));
    if constexpr (kRange.folded) word |= kLow * 0x20;
    const uint64_t rest = word & ~kHigh;  // seven bits per byte, so the sums below do not carry
    const uint64_t reaches_first = rest + kLow * (0x80u - (kRange.first & 0x7Fu));
    const uint64_t exceeds_last = rest + kLow * (0x7Fu - (kRange.last & 0x7Fu));
    return reaches_first & ~exceeds_last & (kRange.first < 0x80 ? ~word : word) & kHigh;
  }

  template <ByteSet kSet>
  static uint64_t find_portably(const char* bytes) {
    static_assert(std::endian::native == std::endian::little, "bit 0 must be the first byte");
    uint64_t mask = 0;
    for (size_t part = 0; part < 8; ++part) {
      uint64_t word;
      std::memcpy(&word, bytes + part * 8, 8);
      uint64_t found = find_in_word<kSet.a>(word);
      if constexpr (kSet.is_pair) found |= find_in_word<kSet.b>(word);
      mask |= ((found >> 7) * 0x0102040810204080ull) >> 56 << (8 * part);
    }
    return mask;
  }

  static void classify_portably(const char* bytes, size_t count, Masks* masks) {
    for (size_t i = 0; i < count; ++i, bytes += kByteBlock) {
      masks[i] = Masks{find_portably<kSets>(bytes)...};
    }
  }

#if defined(__x86_64__)
#define FASTSFT_AVX2 __attribute__((target("avx2")))
#define FASTSFT_AVX512 __attribute__((target("avx512f,avx512bw")))

  // Vectors compare signed bytes, so bytes from 0x80 on are below all others.
  template <ByteRange kRange>
  FASTSFT_AVX2 static __m256i find_in_vector(__m256i bytes) {
    if constexpr (kRange.folded) bytes = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
    if constexpr (kRange.first == kRange.last) {
      return _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(static_cast<char>(kRange.first)));
    } else if constexpr (kRange.first == 0x80) {
      return bytes;
    } else {
      return _mm256_and_si256(_mm256_cmpgt_epi8(bytes, _mm256_set1_epi8(kRange.first - 1)),
                              _mm256_cmpgt_epi8(_mm256_set1_epi8(kRange.last + 1), bytes));
    }
  }

  template <ByteSet kSet>
  FASTSFT_AVX2 static uint64_t find_avx2(__m256i low, __m256i high) {
    __m256i first = find_in_vector<kSet.a>(low), second = find_in_vector<kSet.a>(high);
    if constexpr (kSet.is_pair) {
      first = _mm256_or_si256(first, find_in_vector<kSet.b>(low));
      second = _mm256_or_si256(second, find_in_vector<kSet.b>(high));
    }
    return static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(second))) << 32 |
           static_cast<uint32_t>(_mm256_movemask_epi8(first));
  }

  FASTSFT_AVX2 static void classify_avx2(const char* bytes, size_t count, Masks* masks) {
    for (size_t i = 0; i < count; ++i, bytes += kByteBlock) {
      const auto* from = reinterpret_cast<const __m256i*>(bytes);
      const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
      masks[i] = Masks{find_avx2<kSets>(low, high)...};
    }
  }

  template <ByteRange kRange>
  FASTSFT_AVX512 static uint64_t find_range_avx512(__m512i bytes) {
    if constexpr (kRange.folded) bytes = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
    const __m512i first = _mm512_set1_epi8(static_cast<char>(kRange.first));
    if constexpr (kRange.first == kRange.last) {
      return _mm512_cmpeq_epi8_mask(bytes, first);
    } else if constexpr (kRange.first == 0x80) {
      return _mm512_movepi8_mask(bytes);
    } else {
      return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(bytes, first),
                                    _mm512_set1_epi8(kRange.last - kRange.first + 1));
    }
  }

  template <ByteSet kSet>
  FASTSFT_AVX512 static uint64_t find_avx512(__m512i bytes) {
    uint64_t mask = find_range_avx512<kSet.a>(bytes);
    if constexpr (kSet.is_pair) mask |= find_range_avx512<kSet.b>(bytes);
    return mask;
  }

  FASTSFT_AVX512 static void classify_avx512(const char* bytes, size_t count, Masks* masks) {
    for (size_t i = 0; i < count; ++i, bytes += kByteBlock) {
      const __m512i all = _mm512_loadu_si512(bytes);
      masks[i] = Masks{find_avx512<kSets>(all)...};
    }
  }
#undef FASTSFT_AVX2
#undef FASTSFT_AVX512
#endif
};

}  // namespace fastsft
