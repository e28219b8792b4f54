#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fastsft {

// One bit a byte of a block of 64: bit i is of byte i.
struct ByteMasks {
  uint64_t spaces = 0;  // 0x20
  uint64_t leads = 0;   // 0xE2, with which U+2581 begins
};

// Writes the masks of `count` blocks at `bytes`.
using FindMasks = void (*)(const char* bytes, size_t count, ByteMasks* masks);
// The functions that this machine can run, the fastest last; the first uses no vectors.
const std::vector<FindMasks>& mask_finders();

// Where words begin.
enum class WordRule {
  kRunOfSpaces,  // at a space after a non-space: a run of spaces belongs to the word after it
  kEverySpace,   // at every space
};

// Finds the words of a text part by part. U+2581 counts as a space. The text's own beginning is
// not reported.
class WordStarts {
 public:
  static constexpr size_t kPart = 256;  // bytes at a time, so at most as many words

  WordStarts(std::string_view text, WordRule rule) : text_(text), rule_(rule) {}

  // The starts in the next part, in order, and their number. False after the end of the text.
  bool next(std::array<uint32_t, kPart>& starts, size_t& count);

 private:
  void add_marks(size_t block, uint64_t leads, uint64_t& begins, uint64_t& spaces);

  std::string_view text_;
  WordRule rule_;
  size_t at_ = 0;
  uint64_t after_space_ = 1;  // the beginning of the text counts as such
  uint64_t spilled_ = 0;      // bytes of a U+2581 that reach into the next block
};

}  // namespace fastsft
