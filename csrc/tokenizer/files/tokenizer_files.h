#pragma once

#include <memory>
#include <string>

#include "tokenizer/sentencepiece/llama_tokenizer.h"

namespace fastsft {

// Settings in the files of a Hugging Face tokenizer directory, all but the vocabulary.
struct TokenizerFiles {
  LlamaSettings settings;
  int64_t model_max_length = -1;  // -1 when the files name none
  std::string padding_side = "right";
};

// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json and the added tokens of
// tokenizer.json, each where present, as `LlamaTokenizer.from_pretrained` of transformers 4.57
// does.
TokenizerFiles read_tokenizer_files(const std::string& directory, const SentencePieceModel& model);

// The vocabulary at `path`, a tokenizer.model.
SentencePieceModel read_sentencepiece_model(const std::string& path);

}  // namespace fastsft
