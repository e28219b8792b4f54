#include "tokenizer/byte_level/byte_alphabet.h"

#include <array>

#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

constexpr uint32_t kNumChars = 0x144;

struct Alphabet {
  std::array<uint32_t, 256> chars{};
  std::array<int16_t, kNumChars> bytes{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    alphabet.chars[byte] = is_printable ? byte : next++;
    alphabet.bytes[alphabet.chars[byte]] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

uint32_t byte_to_char(uint8_t byte) { return kAlphabet.chars[byte]; }

bool append_piece_bytes(std::string_view piece, std::string& bytes) {
  for (size_t at = 0; at < piece.size();) {
    const DecodedChar c = decode_char(piece, at);
    if (c.code >= kNumChars || kAlphabet.bytes[c.code] < 0) return false;
    bytes += static_cast<char>(kAlphabet.bytes[c.code]);
    at += c.size;
  }
  return true;
}

std::optional<std::string> piece_to_bytes(std::string_view piece) {
  std::string bytes;
  if (!append_piece_bytes(piece, bytes)) return std::nullopt;
  return bytes;
}

}  // namespace fastsft
