#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/unicode/unicode.h"

namespace fastsft {

// For each character in GPT-2's byte alphabet its byte, or -1 for other characters. GPT-2 writes
// every byte as a printable character: '!' to '~' and most of Latin-1 as themselves, the other 68
// bytes as U+0100 and up (a space is "Ġ").
inline constexpr std::array<int16_t, 0x144> kByteOfChar = [] {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    bytes[is_printable ? byte : next++] = static_cast<int16_t>(byte);
  }
  return bytes;
}();

// Appends the bytes that `piece`, a text in the byte alphabet, stands for. Returns false if it has
// other characters; some bytes may be appended then.
inline bool append_piece_bytes(std::string_view piece, std::string& bytes) {
  for (size_t at = 0; at < piece.size();) {
    const DecodedChar c = decode_char(piece, at);
    if (c.code >= kByteOfChar.size() || kByteOfChar[c.code] < 0) return false;
    bytes += static_cast<char>(kByteOfChar[c.code]);
    at += c.size;
  }
  return true;
}

// Returns the bytes of `piece`, or nothing if it has characters outside the byte alphabet.
inline std::optional<std::string> piece_to_bytes(std::string_view piece) {
  std::string bytes;
  if (!append_piece_bytes(piece, bytes)) return std::nullopt;
  return bytes;
}

}  // namespace fastsft
