#pragma once

#include <initializer_list>
#include <stdexcept>
#include <string>

#include "tokenizer/files/tokenizer_json.h"

namespace fastsft {

// A tokenizer that is sound but not one that fastsft reproduces exactly: the library that it was
// made for must run it. The message says what was met, as in `the normalizer "Lowercase"`.
class UnsupportedTokenizer : public std::invalid_argument {
 public:
  explicit UnsupportedTokenizer(const std::string& what) : std::invalid_argument(what) {}
};

// The begin of a file's own words, for such a message.
std::string in_quotes(const std::string& text);

// Throws UnsupportedTokenizer for another model than BPE, for a setting of it that nobody here
// knows, and for one of `unsupported` that is not null, empty, false or zero.
void check_bpe_settings(const TokenizerJson& json, std::initializer_list<const char*> unsupported);

}  // namespace fastsft
