#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "tokenizer/added_tokens.h"

namespace fastsft {

// An entry in the vocabulary. `score` is set for Unigram models only.
struct VocabularyPiece {
  std::string text;
  int32_t id = 0;
  double score = 0.0;
};

// A merge: the pieces with the ids `left` and `right` become `merged`. Earlier merges have
// priority.
struct PieceMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

// The content of a tokenizer.json after checks: the vocabulary's texts and ids are unique, every id
// is below the total count of pieces and added tokens, merges name pieces in the vocabulary, and
// all texts are UTF-8. Missing sections are null.
struct TokenizerJson {
  std::string model_type;               // "BPE", "Unigram", "WordPiece", "WordLevel"
  Json model = Json::object();          // without vocabulary and merges
  std::vector<VocabularyPiece> pieces;  // in the file's order
  std::vector<PieceMerge> merges;
  std::vector<AddedToken> added_tokens;
  Json normalizer;
  Json pre_tokenizer;
  Json post_processor;
  Json decoder;
};

// Parses untrusted text in nearly linear time. Throws std::invalid_argument "<where>: expected ...,
// got ..." if the text does not fulfil TokenizerJson's conditions, or has more than 256 MiB, 4M
// pieces or 8M merges.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

// Reads and parses a file. Throws std::runtime_error if the file cannot be read.
TokenizerJson read_tokenizer_json(const std::string& path);

}  // namespace fastsft
