// A tokenizer.json, and texts through the tokenizer that it gives: anything is refused with
// std::invalid_argument or keeps the promises of tokenizer/tokenizer.h.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "tokenizer/json_tokenizer.h"

namespace {

using fastsft::SpecialText;
using fastsft::Token;

void check(bool ok) {
  if (!ok) std::abort();
}

void encode(const fastsft::Tokenizer& tokenizer, std::string_view text, SpecialText specials) {
  std::vector<Token> tokens;
  std::vector<int32_t> ids;
  tokenizer.encode(text, specials, tokens);
  tokenizer.encode_ids(text, specials, ids);
  check(tokens.size() == ids.size());
  uint32_t at = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i].id == ids[i] && ids[i] >= 0 && ids[i] < tokenizer.vocab_size());
    check(tokens[i].begin == at && tokens[i].end >= at);
    at = tokens[i].end;
  }
  check(at == text.size());
  check(fastsft::find_invalid_utf8(tokenizer.decode(ids, false)) == std::string_view::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto json = fastsft::parse_tokenizer_json(input, "tokenizer.json");
    const auto tokenizer = fastsft::make_json_tokenizer(json, {});
    for (const SpecialText specials : {SpecialText::kFind, SpecialText::kPlain}) {
      encode(*tokenizer, "He'll say 1234 cafe\u0301s \u4E2D\u6587\n\n  <|x|> y<|x|>\t!", specials);
      if (fastsft::find_invalid_utf8(input) == input.npos) encode(*tokenizer, input, specials);
    }
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
