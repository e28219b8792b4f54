#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fastsft {

// Bytes of the character that begins with `lead`; 1 for a byte that cannot begin one.
inline size_t utf8_char_size(unsigned char lead) {
  if (lead < 0xC0) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

// The code point of the character at `at`, whose bytes must be well-formed and inside the text.
inline char32_t utf8_code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const auto rest = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  const unsigned char lead = byte(0);
  if (lead < 0xC0) return lead;
  if (lead < 0xE0) return (lead & 0x1Fu) << 6 | rest(1);
  if (lead < 0xF0) return (lead & 0x0Fu) << 12 | rest(1) << 6 | rest(2);
  return (lead & 0x07u) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3);
}

// Appends the character `code`; a surrogate becomes three bytes that UTF-8 forbids.
void append_utf8(uint32_t code, std::string& text);

// Position of the first byte that is not well-formed UTF-8 (overlong forms and surrogates
// included), or std::string_view::npos.
size_t find_invalid_utf8(std::string_view text);

// How many bytes at the beginning of `text`, which begins with none that is well-formed, mean
// one U+FFFD: as much as could have become a character (Unicode's maximal subpart).
size_t broken_utf8_size(std::string_view text);

// True when the bytes at `at` spell a surrogate (U+D800 to U+DFFF), which UTF-8 forbids.
bool is_encoded_surrogate(std::string_view text, size_t at);

// Every byte run that is not UTF-8, a lone surrogate as one, becomes U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace fastsft
