#pragma once

#include <memory>
#include <string>

#include "tokenizer/sentencepiece/llama_tokenizer.h"

namespace fastsft {

// The settings in a Hugging Face tokenizer directory, without the vocabulary.
struct TokenizerFiles {
  LlamaSettings settings;
  int64_t model_max_length = -1;  // -1 if no file has a value
  std::string padding_side = "right";
};

// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json and the added tokens of
// tokenizer.json, if they exist, as `LlamaTokenizer.from_pretrained` of transformers 4.57 does.
TokenizerFiles read_tokenizer_files(const std::string& directory, const SentencePieceModel& model);

// Reads the vocabulary from `path`, a tokenizer.model.
SentencePieceModel read_sentencepiece_model(const std::string& path);

}  // namespace fastsft
