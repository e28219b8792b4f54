#include "core/utf8.h"

#include <cstdint>
#include <cstring>

namespace fastsft {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Returns the size of the well-formed character at `at`, or 0 if the bytes are not well-formed.
size_t valid_char_size(std::string_view text, size_t at) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data()) + at;
  const unsigned char lead = bytes[0];
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t size = utf8_char_size(lead);
  if (text.size() - at < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if (!is_continuation(bytes[i])) return 0;
  }
  const unsigned char second = bytes[1];
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool too_large = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : size;
}

// True if the eight bytes at `bytes` are all ASCII.
bool is_ascii_block(const char* bytes) {
  uint64_t block;
  std::memcpy(&block, bytes, sizeof block);
  return (block & 0x8080808080808080ull) == 0;
}

}  // namespace

void append_utf8(uint32_t code, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (text.size() - at >= 8 && is_ascii_block(text.data() + at)) {
      at += 8;
      continue;
    }
    const size_t size = valid_char_size(text, at);
    if (size == 0) return at;
    at += size;
  }
  return std::string_view::npos;
}

size_t broken_utf8_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4 || text.size() < 2) return 1;
  const unsigned char lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < lowest || byte(1) > highest) return 1;
  size_t size = 2;
  while (size < utf8_char_size(lead) && size < text.size() && is_continuation(byte(size))) ++size;
  return size;
}

bool is_encoded_surrogate(std::string_view text, size_t at) {
  return text.size() - at >= 3 && text[at] == '\xED' &&
         static_cast<unsigned char>(text[at + 1]) >= 0xA0 && is_continuation(text[at + 1]) &&
         is_continuation(text[at + 2]);
}

std::string replace_invalid_utf8(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string result;
  while (!text.empty()) {
    const size_t bad = find_invalid_utf8(text);
    result += text.substr(0, bad);
    if (bad == std::string_view::npos) break;
    result += kReplacement;
    text.remove_prefix(bad + (is_encoded_surrogate(text, bad) ? 3 : 1));
  }
  return result;
}

}  // namespace fastsft
