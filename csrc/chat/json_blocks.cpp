#include "chat/json_blocks.h"

#include <bit>
#include <cstring>

namespace fastsft {
namespace {

constexpr uint64_t kLow = 0x0101010101010101ull;
constexpr uint64_t kHigh = 0x8080808080808080ull;

uint64_t load(const char* text) {
  uint64_t word;
  std::memcpy(&word, text, sizeof word);
  return word;
}

// The high bit of each byte of `word` that equals `character`, exactly.
uint64_t equal_bytes(uint64_t word, char character) {
  const uint64_t x = word ^ kLow * static_cast<unsigned char>(character);
  return ~(((x & ~kHigh) + ~kHigh) | x) & kHigh;
}

// One bit a byte from the high bits.
uint64_t gather_bits(uint64_t high) { return ((high >> 7) * 0x0102040810204080ull) >> 56; }

bool is_special(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }

}  // namespace

void classify_json_portable(const char* text, size_t count, JsonBlock* blocks) {
  for (size_t i = 0; i < count; ++i) {
    JsonBlock block;
    for (size_t k = 0; k < 8; ++k) {
      const uint64_t word = load(text + i * kJsonBlockSize + k * 8);
      const uint64_t folded = word | kLow * 0x20;  // [ becomes {, ] becomes }
      block.quotes |= gather_bits(equal_bytes(word, '"')) << (8 * k);
      block.backslashes |= gather_bits(equal_bytes(word, '\\')) << (8 * k);
      block.brackets |= gather_bits(equal_bytes(folded, '{') | equal_bytes(folded, '}')) << (8 * k);
    }
    blocks[i] = block;
  }
}

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

}  // namespace fastsft
