#pragma once

#include <cstdint>
#include <span>

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

// Written by scripts/make_unicode_tables.py from what `tokenizers` does.
std::span<const CodePointRange> letter_ranges();
std::span<const CodePointRange> number_ranges();
std::span<const CodePointRange> space_ranges();
std::span<const CodePointRange> word_ranges();
std::span<const CombiningRange> combining_ranges();
std::span<const Decomposition> decompositions();  // by code point, one step, without Hangul
std::span<const Decomposition> compositions();    // those that NFC puts together again

}  // namespace fastsft
