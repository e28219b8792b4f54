#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// \p{L}, \p{N} and \s as the split patterns of `tokenizers` see them; the rest is kOther.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// The code point at `at` of valid UTF-8, and how many bytes it has.
struct DecodedChar {
  uint32_t code = 0;
  uint32_t size = 0;
};

inline DecodedChar decode_char(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i]));
  };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// Where the character before `at` begins.
inline size_t char_begin_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xC0) == 0x80);
  return at;
}

// A property of all code points in two steps: blocks of 256, equal ones stored once.
class CodePointTable {
 public:
  // `values[i]` holds for [first, last] of range i, 0 elsewhere.
  struct Range {
    uint32_t first;
    uint32_t last;
    uint8_t value;
  };
  explicit CodePointTable(const std::vector<Range>& ranges);

  uint8_t operator[](uint32_t code) const { return values_[blocks_[code >> 8] + (code & 0xFF)]; }

 private:
  std::array<uint32_t, 0x1100> blocks_{};
  std::vector<uint8_t> values_;
};

// CharClass of every code point; built at the first call.
const CodePointTable& char_classes();
// 1 for \w of Rust's regex crate, which decides about `single_word`.
const CodePointTable& word_chars();

inline bool is_space(uint32_t code) {
  return char_classes()[code] == static_cast<uint8_t>(CharClass::kSpace);
}

// `text` without the white space at its end or beginning, as str.rstrip and str.lstrip of Python.
std::string_view strip_right(std::string_view text);
std::string_view strip_left(std::string_view text);

}  // namespace fastsft
