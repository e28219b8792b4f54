#pragma once

#include <cstdint>

namespace fastsft {

struct CodePointRange {
  uint32_t first;
  uint32_t last;
};

// Canonical_Combining_Class of a range of code points.
struct CombiningRange {
  uint32_t first;
  uint32_t last;
  uint8_t combining_class;
};

// `code` falls into `first` and `second` (0 when there is one only).
struct Decomposition {
  uint32_t code;
  uint32_t first;
  uint32_t second;
};

// From what `tokenizers` does. kDecompositions: by code point, one step, without Hangul;
// kCompositions: those that NFC puts together again.
#include "tokenizer/unicode/unicode_tables.inc"

}  // namespace fastsft
