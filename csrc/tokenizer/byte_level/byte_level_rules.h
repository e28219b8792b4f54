#pragma once

#include "tokenizer/byte_level/split_pattern.h"
#include "tokenizer/files/tokenizer_json.h"

namespace fastsft {

// How a byte-level tokenizer.json treats a text before its merges.
struct ByteLevelRules {
  SplitPattern pattern = SplitPattern::kGpt2;
  bool adds_prefix_space = false;
  bool normalizes_nfc = false;
  bool ignores_merges = false;
};

// Throws NotNative for anything that is not known exactly.
ByteLevelRules parse_byte_level_rules(const TokenizerJson& json);

}  // namespace fastsft
