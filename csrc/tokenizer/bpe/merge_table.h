#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/bpe/character_table.h"
#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace fastsft {

// A BPE vocabulary as merges of symbol pairs. A symbol below `num_pieces` is a token id; higher
// ones are characters that only occur inside tokens.
struct MergeRules {
  struct Rule {
    int32_t left = 0;
    int32_t right = 0;
    int32_t rank = 0;  // smaller ones merge first, the leftmost of equals
    int32_t symbol = 0;
  };
  int32_t num_pieces = 0;
  std::vector<std::pair<char32_t, int32_t>> characters;  // symbols of the characters that have one
  std::vector<Rule> rules;
  std::vector<std::string_view>
      merged;  // every text of two characters or more that merges can make
};

// SentencePiece's merges: two symbols merge when their texts together are a normal piece, the best
// score first. The views point into `model`.
MergeRules derive_merge_rules(const SentencePieceModel& model);

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
