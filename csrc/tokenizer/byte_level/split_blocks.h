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

// The classes of the 64 bytes at `bytes`, by the widest instructions of the processor.
using ClassifyBytes = void (*)(const char* bytes, ClassMasks& masks);
ClassifyBytes find_classifier();
// Without any special instructions; what the others are compared with.
void classify_bytes(const char* bytes, ClassMasks& masks);

// Where pieces begin in the bytes from the beginning of a piece on. Bit 0 is set. Pieces that
// begin below `end` are complete: the next one begins there, or the text is over.
struct BlockStarts {
  uint64_t starts = 0;
  uint32_t end = 0;  // 0: nothing is certain
};

// `text` begins with a piece; at most 64 bytes of it are looked at.
BlockStarts find_block_starts(SplitPattern pattern, std::string_view text, ClassifyBytes classify);

}  // namespace fastsft
