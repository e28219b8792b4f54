#pragma once

#include <cstdint>

namespace fastsft {

struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

// The Canonical_Combining_Class for a code point range.
struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t combining_class;
};

// The decomposition of `code` into `first` and `second`. `second` is 0 if there is a single part.
struct Decomposition {
  uint32_t code;
  uint32_t first;
  uint32_t second;
};

// Tables derived from the behaviour of `tokenizers`. kDecompositions: sorted by code point, one
// step each, without Hangul. kCompositions: the pairs that NFC composes again.
#include "tokenizer/unicode/unicode_tables.inc"

}  // namespace fastsft
