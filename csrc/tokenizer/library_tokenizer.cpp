#include "tokenizer/library_tokenizer.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {

void LibraryTokenizer::encode(std::string_view text, SpecialText specials,
                              std::vector<Token>& tokens) const {
  require(text.size() < UINT32_MAX, "a text of ", text.size(), " bytes is too long to tokenize");
  const size_t first = tokens.size();
  uint32_t at = 0;
  for (const auto& [id, begin, end] :
       calls_.encode(std::string(text), specials == SpecialText::kPlain)) {
    const auto next = std::max(at, std::min(end, static_cast<uint32_t>(text.size())));
    // If a character is divided between tokens, the library gives its range to all of them. Here
    // the last token gets the range: an empty range after the character would count as following
    // text.
    if (tokens.size() > first && begin < at && next == at) {
      at = std::max(tokens.back().begin, begin);
      tokens.back().end = at;
    }
    tokens.push_back({id, at, next});
    at = next;
  }
  if (tokens.size() > first) tokens.back().end = static_cast<uint32_t>(text.size());
}

std::string LibraryTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  for (const int32_t id : ids) token_text(id);  // throws for an unknown id
  return calls_.decode({ids.begin(), ids.end()}, skip_special_tokens);
}

std::string LibraryTokenizer::token_text(int32_t id) const {
  const std::string text = calls_.token_text(id);
  require(!text.empty(), "token id ", id, " is not in the vocabulary of ", vocab_size(), " tokens");
  return text;
}

}  // namespace fastsft
