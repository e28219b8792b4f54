#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/files/json_vocabulary.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// Settings next to tokenizer.json: in tokenizer_config.json, or in a tokenizer object.
struct JsonTokenizerSettings {
  std::vector<GivenToken> added;
  // Texts of the named tokens; "" for none. They must be tokens.
  std::string bos, eos, unk, pad;
  std::optional<bool> add_prefix_space;  // instead of a ByteLevel pre-tokenizer's
  // What goes around a text, instead of what the post-processor says: bos and eos, or nothing.
  std::optional<bool> adds_bos, adds_eos;
  bool legacy = true;
};

// The native tokenizer of a tokenizer.json; throws NotNative when there is none.
std::shared_ptr<Tokenizer> make_json_tokenizer(const TokenizerJson& json,
                                               const JsonTokenizerSettings& settings);

}  // namespace fastsft
