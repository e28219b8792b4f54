#pragma once

#include <string>

#include "tokenizer/bpe/merge_table.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"
#include "tokenizer/sentencepiece/word_starts.h"

namespace fastsft {

// Before which parts of a text between added tokens a tokenizer puts a space of its own.
enum class PrefixRule {
  kNever,
  kAlways,            // the normalizer Prepend
  kUnlessSpace,       // Metaspace "always": where the part does not begin with a space
  kFirstUnlessSpace,  // Metaspace "first": the same, only where the text begins
};

// A tokenizer.json that writes U+2581 for a space: as Llama's and Mistral's.
struct MetaspaceRules {
  PrefixRule prefix = PrefixRule::kNever;
  WordRule words = WordRule::kRunOfSpaces;
  bool has_normalizer = false;  // spaces are replaced before added tokens are looked for again
  bool replaces_marks = false;  // the decoder writes U+2581 as a space
  int64_t stripped_spaces = 0;  // and takes so many away at the beginning
};

// Throws UnsupportedTokenizer for anything that is not known exactly.
MetaspaceRules parse_metaspace_rules(const TokenizerJson& json);

// The vocabulary of such a file and its merges, in the order of the file. Of the model only pieces,
// bytes, unk_id and fuses_unknown are filled in. The rules' views point into `model`. Throws
// UnsupportedTokenizer like above.
SentencePieceModel make_metaspace_model(const TokenizerJson& json);
MergeRules make_metaspace_merges(const TokenizerJson& json, const SentencePieceModel& model);

}  // namespace fastsft
