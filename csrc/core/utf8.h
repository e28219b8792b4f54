#pragma once

#include <cstddef>
#include <string_view>

namespace fastsft {

// Bytes of the character that begins with `lead`; 1 for a byte that cannot begin one.
inline size_t utf8_char_size(unsigned char lead) {
  if (lead < 0xC0) return 1;
  if (lead < 0xE0) return 2;
  return lead < 0xF0 ? 3 : 4;
}

// Position of the first byte that is not well-formed UTF-8 (overlong forms and surrogates
// included), or std::string_view::npos.
size_t find_invalid_utf8(std::string_view text);

// True when the bytes at `at` spell a surrogate (U+D800 to U+DFFF), which UTF-8 forbids.
bool is_encoded_surrogate(std::string_view text, size_t at);

}  // namespace fastsft
