#include "tokenizer/bpe/merge_table.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

constexpr char32_t kSpaceMarkCode = 0x2581;

}  // namespace

MergeTable::MergeTable(const MergeRules& rules)
    : num_pieces_(rules.num_pieces), pairs_(rules.rules.size()) {
  int32_t num_symbols = num_pieces_;
  for (const auto& [character, symbol] : rules.characters) {
    num_symbols = std::max(num_symbols, symbol + 1);
    if (character != U' ') characters_.add(character, symbol);
  }
  characters_.add(U' ', characters_.find(kSpaceMarkCode));
  require(num_symbols < PairTable::kMaxIds, "a vocabulary of ", num_symbols,
          " pieces and characters; at most ", PairTable::kMaxIds, " are possible");
  for (const auto& [left, right, rank, symbol] : rules.rules) {
    require(static_cast<uint32_t>(rank) < PairTable::kNone, "a vocabulary of more than ",
            PairTable::kNone, " merges");
    pairs_.add(left, right, {static_cast<uint32_t>(rank), symbol});
  }
  pairs_.make_square(std::max(characters_.find(kSpaceMarkCode), 0));  // common ones follow it
  is_followed_.resize(num_symbols);
  is_preceded_.resize(num_symbols);
  for (const std::string_view text : rules.merged) add_neighbours(text);
  neighbours_.make_square(std::max(characters_.find(kSpaceMarkCode), 0));
}

void MergeTable::add_neighbours(std::string_view text) {
  char32_t before = utf8_code_point(text, 0);
  bool only_marks = before == kSpaceMarkCode;
  for (size_t at = utf8_char_size(text[0]); at < text.size(); at += utf8_char_size(text[at])) {
    const char32_t character = utf8_code_point(text, at);
    const int32_t left = characters_.find(before);
    const int32_t right = characters_.find(character);
    before = character;
    cuts_before_spaces_ &= only_marks || character != kSpaceMarkCode;
    only_marks &= character == kSpaceMarkCode;
    if ((left | right) < 0) continue;
    is_followed_[left] = 1;
    is_preceded_[right] = 1;
    neighbours_.add(left, right, {0, 0});
  }
}

}  // namespace fastsft
