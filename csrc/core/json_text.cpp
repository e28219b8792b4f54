#include "core/json_text.h"

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/utf8.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastsft {
namespace {

constexpr uint64_t kLow = 0x0101010101010101ull;
constexpr uint64_t kHigh = 0x8080808080808080ull;

uint64_t load(const char* text) {
  uint64_t word;
  std::memcpy(&word, text, sizeof word);
  return word;
}

// Returns a word with the high bit set for exactly the bytes of `word` that equal `character`.
uint64_t equal_bytes(uint64_t word, char character) {
  const uint64_t x = word ^ kLow * static_cast<unsigned char>(character);
  return ~(((x & ~kHigh) + ~kHigh) | x) & kHigh;
}

bool is_special(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }

#if defined(__x86_64__)

__attribute__((target("avx2,bmi,popcnt"))) uint32_t bits_equal(__m256i bytes, char character) {
  return static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(character))));
}

__attribute__((target("avx2,bmi,popcnt"))) size_t find_special_avx2(const char* text, size_t size,
                                                                    bool* has_wide) {
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

#endif

void append_escape(unsigned code, std::string& text) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", code);
  text += escape;
}

// Copies valid UTF-8; writes lone surrogates as escapes and other invalid bytes as U+FFFD.
void append_escaped(std::string_view part, std::string& text) {
  while (true) {
    const size_t bad = find_invalid_utf8(part);
    text += part.substr(0, bad);
    if (bad == std::string_view::npos) return;
    const bool is_surrogate = is_encoded_surrogate(part, bad);
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(part[bad + i]); };
    append_escape(is_surrogate ? (byte(0) & 0xFu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu)
                               : 0xFFFDu,
                  text);
    part.remove_prefix(bad + (is_surrogate ? 3 : 1));
  }
}

}  // namespace

size_t find_string_special_portable(const char* text, size_t size, bool* has_wide) {
  size_t at = 0;
  uint64_t wide = 0;
  for (; size - at >= 8; at += 8) {
    const uint64_t word = load(text + at);
    const uint64_t control = (word - kLow * 0x20) & ~word & kHigh;
    if ((equal_bytes(word, '"') | equal_bytes(word, '\\') | control) != 0) break;
    wide |= word & kHigh;
  }
  for (; at < size && !is_special(text[at]); ++at)
    wide |= static_cast<unsigned char>(text[at]) & 0x80;
  if (wide != 0) *has_wide = true;
  return at;
}

size_t find_string_special(const char* text, size_t size, bool* has_wide) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return find_special_avx2(text, size, has_wide);
#endif
  return find_string_special_portable(text, size, has_wide);
}

void append_json_string(std::string_view value, std::string& text) {
  text += '"';
  while (!value.empty()) {
    bool has_wide = false;
    const size_t end = find_string_special(value.data(), value.size(), &has_wide);
    if (has_wide) {
      append_escaped(value.substr(0, end), text);
    } else {
      text += value.substr(0, end);
    }
    if (end == value.size()) break;
    const char c = value[end];
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else {
      append_escape(static_cast<unsigned char>(c), text);
    }
    value.remove_prefix(end + 1);
  }
  text += '"';
}

}  // namespace fastsft
