#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "tokenizer/tokenizer.h"

namespace fastsft::fuzz {

inline void check(bool ok) {
  if (!ok) std::abort();
}

// Aborts unless the tokens of `text` meet the contract in tokenizer/tokenizer.h.
inline void check_promises(const Tokenizer& tokenizer, std::string_view text,
                           SpecialText specials) {
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
  check(find_invalid_utf8(tokenizer.decode(ids, false)) == std::string_view::npos);
}

}  // namespace fastsft::fuzz
