#include "tokenizer/files/unsupported_tokenizer.h"

#include <set>

#include "core/error.h"

namespace fastsft {
namespace {

bool is_set(const Json& value) {
  return !value.is_null() && value != "" && value != false && value != 0.0;
}

}  // namespace

std::string in_quotes(const std::string& text) { return concat("\"", text.substr(0, 200), "\""); }

void check_bpe_settings(const TokenizerJson& json, std::initializer_list<const char*> unsupported) {
  static const std::set<std::string> kKnown = {
      "type",     "dropout",       "unk_token",     "continuing_subword_prefix",
      "fuse_unk", "byte_fallback", "ignore_merges", "end_of_word_suffix"};
  if (json.model_type != "BPE") {
    throw UnsupportedTokenizer("the model " + in_quotes(json.model_type));
  }
  for (const auto& [key, value] : json.model.items()) {
    if (!kKnown.contains(key)) {
      throw UnsupportedTokenizer("the model's setting " + in_quotes(key));
    }
  }
  for (const char* key : unsupported) {
    const auto found = json.model.find(key);
    if (found != json.model.end() && is_set(*found)) {
      throw UnsupportedTokenizer(concat("a BPE model with ", key));
    }
  }
}

}  // namespace fastsft
