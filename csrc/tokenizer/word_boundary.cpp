#include "tokenizer/word_boundary.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "tokenizer/sentencepiece_model.h"

namespace fastsft {
namespace {

// The first space at or after `at`, eight bytes at a time: words are short, a call of memchr is
// not.
size_t find_space(std::string_view text, size_t at) {
  constexpr uint64_t kLow = 0x0101010101010101ull;
  constexpr uint64_t kHigh = 0x8080808080808080ull;
  if constexpr (std::endian::native == std::endian::little) {
    for (; text.size() - at >= 8; at += 8) {
      uint64_t block;
      std::memcpy(&block, text.data() + at, 8);
      const uint64_t zeros = block ^ (kLow * ' ');
      const uint64_t found = (zeros - kLow) & ~zeros & kHigh;
      if (found != 0) return at + std::countr_zero(found) / 8;
    }
  }
  while (at < text.size() && text[at] != ' ') ++at;
  return at;
}

size_t mark_size(std::string_view text, size_t at) {
  if (text[at] == ' ') return 1;
  return text.compare(at, kSpaceMark.size(), kSpaceMark) == 0 ? kSpaceMark.size() : 0;
}

size_t find_word_end_with_marks(std::string_view text, size_t at) {
  size_t size = 0;
  while (at < text.size() && (size = mark_size(text, at)) != 0) at += size;
  while (at < text.size() && mark_size(text, at) == 0) ++at;
  return at;
}

}  // namespace

size_t find_word_end(std::string_view text, size_t begin, bool has_marks) {
  if (has_marks) return find_word_end_with_marks(text, begin);
  size_t at = begin;
  while (at < text.size() && text[at] == ' ') ++at;
  return find_space(text, at);
}

}  // namespace fastsft
