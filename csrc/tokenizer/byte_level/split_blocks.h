#pragma once

#include <cstdint>
#include <string_view>

#include "tokenizer/byte_level/split_pattern.h"

namespace fastsft {

// Character classes as bit masks for up to 64 ASCII bytes; bit i stands for byte i.
struct ClassMasks {
  uint64_t letters = 0;
  uint64_t digits = 0;
  uint64_t spaces = 0;    // \s, which includes blanks and newlines
  uint64_t newlines = 0;  // \r and \n
  uint64_t blanks = 0;    // ' '
  uint64_t quotes = 0;    // '
  uint64_t high = 0;      // bytes that are not ASCII
};

// A function that writes the classes for `count` blocks with 64 bytes each.
using ClassifyBytes = void (*)(const char* bytes, size_t count, ClassMasks* masks);
// Returns the fastest function for this machine, or the function without vector instructions.
ClassifyBytes byte_classifier(bool portable = false);

// Where pieces begin in a block that starts with a piece; bit i of `starts` stands for byte i, and
// bit 0 is set. Every piece that begins before `end` is complete: the next piece begins at its end,
// or the text ends there.
struct BlockStarts {
  uint64_t starts = 0;
  uint32_t end = 0;  // 0 if no piece is complete
};

// Finds where pieces begin in the first 64 bytes of `text`. The text must begin with a piece.
BlockStarts find_block_starts(SplitPattern pattern, std::string_view text, ClassifyBytes classify);

}  // namespace fastsft
