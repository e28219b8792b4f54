#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/bpe/character_table.h"
#include "tokenizer/bpe/merge_rules.h"
#include "tokenizer/bpe/pair_table.h"

namespace fastsft {

// MergeRules, ready to be looked up. A symbol is a piece (its number is the id), a character that
// only occurs inside pieces (numbered from `num_pieces` up), or kUnknown.
class MergeTable {
 public:
  static constexpr int32_t kUnknown = CharacterTable::kMissing;

  // Throws std::invalid_argument where PairTable has no room for the symbols or the ranks.
  explicit MergeTable(const MergeRules& rules);

  // A space means U+2581.
  int32_t find_character(char32_t character) const { return characters_.find(character); }
  // Equal scores have equal ranks.
  const PairTable& pairs() const { return pairs_; }
  // False when no token can hold the characters `left` and `right` one after the other: words may
  // then be cut between them. Of characters, not of merged symbols.
  bool can_join(int32_t left, int32_t right) const {
    if ((left | right) < 0 || !is_followed_[left] || !is_preceded_[right]) return false;
    return neighbours_.find_near(left, right).exists();
  }

  int32_t num_pieces() const { return num_pieces_; }
  size_t num_symbols() const { return is_followed_.size(); }
  // No piece has U+2581 after another character, so nothing merges across the start of a word.
  bool cuts_before_spaces() const { return cuts_before_spaces_; }

 private:
  void add_neighbours(std::string_view text);

  int32_t num_pieces_ = 0;
  bool cuts_before_spaces_ = true;
  CharacterTable characters_;
  PairTable pairs_;
  PairTable neighbours_;              // pairs of characters inside tokens
  std::vector<uint8_t> is_followed_;  // by symbol: some token has a character after it,
  std::vector<uint8_t> is_preceded_;  // before it
};

}  // namespace fastsft
