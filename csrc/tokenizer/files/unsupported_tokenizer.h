#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>

#include "tokenizer/files/tokenizer_json.h"

namespace fastsft {

// The error for a valid tokenizer that fastsft does not reproduce exactly. The tokenizer's own
// library must run it. The message names the unsupported part, such as `the normalizer
// "Lowercase"`.
class UnsupportedTokenizer : public std::invalid_argument {
 public:
  explicit UnsupportedTokenizer(const std::string& what) : std::invalid_argument(what) {}
};

// Returns a text from the file in quotes for such a message, cut to 200 bytes.
std::string in_quotes(const std::string& text);

// Throws UnsupportedTokenizer if the model is not BPE, has an unknown setting, or sets an option in
// `unsupported` to a value other than null, empty, false or zero.
void check_bpe_settings(const TokenizerJson& json, std::initializer_list<const char*> unsupported);

}  // namespace fastsft
