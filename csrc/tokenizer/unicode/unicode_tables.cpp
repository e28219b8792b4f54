#include "tokenizer/unicode/unicode_tables.h"

namespace fastsft {
namespace {

#include "tokenizer/unicode/unicode_tables.inc"

}  // namespace

std::span<const CodePointRange> letter_ranges() { return kLetterRanges; }
std::span<const CodePointRange> number_ranges() { return kNumberRanges; }
std::span<const CodePointRange> space_ranges() { return kSpaceRanges; }
std::span<const CodePointRange> word_ranges() { return kWordRanges; }
std::span<const CombiningRange> combining_ranges() { return kCombiningRanges; }
std::span<const Decomposition> decompositions() { return kDecompositions; }
std::span<const Decomposition> compositions() { return kCompositions; }

}  // namespace fastsft
