#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fastsft {

// Returns the size in bytes of a character that begins with `lead`; 1 if `lead` is a continuation
// byte.
inline size_t utf8_char_size(unsigned char lead) {
  if (lead < 0xC0) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

// Returns the code point of the character at `at`, which must be well-formed and complete.
inline char32_t utf8_code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const auto rest = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  const unsigned char lead = byte(0);
  if (lead < 0xC0) return lead;
  if (lead < 0xE0) return (lead & 0x1Fu) << 6 | rest(1);
  if (lead < 0xF0) return (lead & 0x0Fu) << 12 | rest(1) << 6 | rest(2);
  return (lead & 0x07u) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3);
}

// Appends the character `code` as UTF-8. A surrogate becomes three bytes, which UTF-8 forbids.
void append_utf8(uint32_t code, std::string& text);

// Returns the position of the first byte that is not well-formed UTF-8 (also overlong forms and
// surrogates), or std::string_view::npos.
size_t find_invalid_utf8(std::string_view text);

// Returns how many bytes at the beginning of `text`, which must not begin with a well-formed
// character, become one U+FFFD: the longest possible start of a character (Unicode's maximal
// subpart).
size_t broken_utf8_size(std::string_view text);

// True if the bytes at `at` encode a surrogate (U+D800 to U+DFFF), which UTF-8 forbids.
bool is_encoded_surrogate(std::string_view text, size_t at);

// Replaces bytes that are not UTF-8 with U+FFFD; a lone surrogate's three bytes become one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace fastsft
