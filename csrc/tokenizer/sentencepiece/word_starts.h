#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fastsft {

// Positions of some bytes in a 64-byte block; bit i stands for byte i.
struct ByteMasks {
  uint64_t spaces = 0;  // 0x20
  uint64_t leads = 0;   // 0xE2, the first byte of U+2581
};

// A function that writes the masks for `count` blocks at `bytes`.
using FindMasks = void (*)(const char* bytes, size_t count, ByteMasks* masks);
// Returns the functions that this machine can run, the fastest last. The first uses no vector
// instructions.
const std::vector<FindMasks>& mask_finders();

// Where words begin.
enum class WordRule {
  kRunOfSpaces,  // at a space after a non-space; a run of spaces belongs to the word after it
  kEverySpace,   // at every space
};

// Finds where words begin, part by part. U+2581 counts as a space. The text's own beginning is not
// reported.
class WordStarts {
 public:
  static constexpr size_t kPart = 256;  // bytes per part, which has at most as many words

  WordStarts(std::string_view text, WordRule rule) : text_(text), rule_(rule) {}

  // Finds the word starts in the next part: fills `starts` in ascending order and sets `count`.
  // Returns false at the text's end.
  bool next(std::array<uint32_t, kPart>& starts, size_t& count);

 private:
  void add_marks(size_t block, uint64_t leads, uint64_t& begins, uint64_t& spaces);

  std::string_view text_;
  WordRule rule_;
  size_t at_ = 0;
  uint64_t after_space_ = 1;  // 1 after a space and at the text's beginning
  uint64_t spilled_ = 0;      // bytes from a U+2581 that continue in the next block
};

}  // namespace fastsft
