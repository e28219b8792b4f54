#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "tokenizer/added_tokens.h"

namespace fastsft {

// An entry of the model's vocabulary; `score` is of Unigram models only.
struct VocabularyPiece {
  std::string text;
  int32_t id = 0;
  double score = 0.0;
};

// The pieces with the ids `left` and `right` join into `merged`; an earlier merge goes first.
struct PieceMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

// A tokenizer.json, checked: texts and ids of the vocabulary are unique, every id is below the
// number of pieces and added tokens, merges name pieces of the vocabulary, everything is UTF-8.
// Sections that are not there or null are null.
struct TokenizerJson {
  std::string model_type;               // "BPE", "Unigram", "WordPiece", "WordLevel"
  Json model = Json::object();          // all but vocabulary and merges
  std::vector<VocabularyPiece> pieces;  // in the order of the file
  std::vector<PieceMerge> merges;
  std::vector<AddedToken> added_tokens;
  Json normalizer;
  Json pre_tokenizer;
  Json post_processor;
  Json decoder;
};

// Parses untrusted text in time near its size. Throws std::invalid_argument "<where>: expected ...,
// got ..." for anything that breaks what TokenizerJson promises; at most 256 MiB, 4M pieces and 8M
// merges.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

// Reads the file and parses it. Throws std::runtime_error when it cannot be read.
TokenizerJson read_tokenizer_json(const std::string& path);

}  // namespace fastsft
