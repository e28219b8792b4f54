#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// The classes \p{L}, \p{N} and \s in the split patterns of `tokenizers`. All other characters are
// kOther.
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// A code point in a UTF-8 text, and its size in bytes.
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

// Returns where the character before `at` begins.
inline size_t char_begin_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xC0) == 0x80);
  return at;
}

// A two-level table for a property that every code point has. Blocks have 256 values, and equal
// blocks share storage.
class CodePointTable {
 public:
  // The code points [first, last] have the value `value`. Code points outside all ranges have 0.
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

// Returns every code point's CharClass. The table is built at the first call.
const CodePointTable& char_classes();
// Returns 1 for \w in Rust's regex crate, which AddedToken::single_word needs.
const CodePointTable& word_chars();

inline bool is_space(uint32_t code) {
  return char_classes()[code] == static_cast<uint8_t>(CharClass::kSpace);
}

// Return `text` without the white space at its end or beginning, like Python's str.rstrip and
// str.lstrip.
std::string_view strip_right(std::string_view text);
std::string_view strip_left(std::string_view text);

}  // namespace fastsft
