#pragma once

#include <cstdint>
#include <string_view>

#include "tokenizer/byte_level/split_pattern.h"

namespace fastsft {

// Up to 64 ASCII bytes of a text as sets: bit i of a mask is of byte i.
struct ClassMasks {
  uint64_t letters = 0;
  uint64_t digits = 0;
  uint64_t spaces = 0;    // \s, blanks and newlines included
  uint64_t newlines = 0;  // \r and \n
  uint64_t blanks = 0;    // ' '
  uint64_t quotes = 0;    // '
  uint64_t high = 0;      // bytes that are not ASCII
};

// Writes the classes of `count` blocks of 64 bytes.
using ClassifyBytes = void (*)(const char* bytes, size_t count, ClassMasks* masks);
// The fastest function of this machine, or the one without vectors to compare it with.
ClassifyBytes byte_classifier(bool portable = false);

// Where pieces begin in the bytes from the beginning of a piece on. Bit 0 is set. Pieces that
// begin below `end` are complete: the next one begins there, or the text is over.
struct BlockStarts {
  uint64_t starts = 0;
  uint32_t end = 0;  // 0: nothing is certain
};

// `text` begins with a piece; at most 64 bytes of it are looked at.
BlockStarts find_block_starts(SplitPattern pattern, std::string_view text, ClassifyBytes classify);

}  // namespace fastsft
