#pragma once

#include <string>

#include "tokenizer/bpe/merge_table.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"
#include "tokenizer/sentencepiece/word_starts.h"

namespace fastsft {

// When a tokenizer puts a space before a part. Added tokens divide a text into parts.
enum class PrefixRule {
  kNever,
  kAlways,            // the normalizer Prepend
  kUnlessSpace,       // Metaspace "always": unless the part begins with a space
  kFirstUnlessSpace,  // Metaspace "first": the same, but only at the text's beginning
};

// The rules in a tokenizer.json that writes U+2581 for a space, as for Llama 2 and Mistral.
struct MetaspaceRules {
  PrefixRule prefix = PrefixRule::kNever;
  WordRule words = WordRule::kRunOfSpaces;
  bool has_normalizer = false;  // replaces spaces before the second search for added tokens
  bool replaces_marks = false;  // the decoder writes a space for U+2581
  int64_t stripped_spaces = 0;  // most spaces that the decoder removes at the beginning
};

// Parses the rules. Throws UnsupportedTokenizer for any setting that fastsft does not reproduce
// exactly.
MetaspaceRules parse_metaspace_rules(const TokenizerJson& json);

// Return such a file's vocabulary and merges, in the file's order. In the model only pieces, bytes,
// unk_id and fuses_unknown are set. The views in the merges point into `model`. Both throw
// UnsupportedTokenizer like parse_metaspace_rules.
SentencePieceModel make_metaspace_model(const TokenizerJson& json);
MergeRules make_metaspace_merges(const TokenizerJson& json, const SentencePieceModel& model);

}  // namespace fastsft
