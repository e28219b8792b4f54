#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace fastsft {

// A BPE vocabulary as merges of symbol pairs. A symbol below `num_pieces` is a token id; higher
// ones are characters that only occur inside tokens.
struct MergeRules {
  struct Rule {
    int32_t left = 0;
    int32_t right = 0;
    int32_t rank = 0;  // smaller ones merge first, the leftmost of equals
    int32_t symbol = 0;
  };
  int32_t num_pieces = 0;
  std::vector<std::pair<char32_t, int32_t>> characters;  // symbols of the characters that have one
  std::vector<Rule> rules;
  std::vector<std::string_view>
      merged;  // every text of two characters or more that merges can make
};

// SentencePiece's merges: two symbols merge when their texts together are a normal piece, the best
// score first. The views point into `model`.
MergeRules derive_merge_rules(const SentencePieceModel& model);

}  // namespace fastsft
