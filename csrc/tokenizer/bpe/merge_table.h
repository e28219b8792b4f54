#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/bpe/character_table.h"
#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/sentencepiece/sentencepiece_model.h"

namespace fastsft {

// A BPE vocabulary as symbol pairs that merge. A symbol below `num_pieces` is a token id. A higher
// symbol is a character that occurs only inside tokens.
struct MergeRules {
  struct Rule {
    int32_t left = 0;
    int32_t right = 0;
    int32_t rank = 0;  // lower ranks merge first; if ranks are equal, the leftmost pair
    int32_t symbol = 0;
  };
  int32_t num_pieces = 0;
  std::vector<std::pair<char32_t, int32_t>> characters;  // characters with their symbols
  std::vector<Rule> rules;
  std::vector<std::string_view> merged;  // all texts longer than one character that merges make
};

// Derives SentencePiece's merges: two symbols merge if their joined text is a normal piece, and the
// piece with the best score merges first. The views in the result point into `model`.
MergeRules derive_merge_rules(const SentencePieceModel& model);

// MergeRules in a form for fast lookup. A symbol is a piece (a number below `num_pieces`, which is
// the token id), a character that occurs only inside pieces (a higher number), or kUnknown.
class MergeTable {
 public:
  static constexpr int32_t kUnknown = CharacterTable::kMissing;

  // Throws std::invalid_argument if PairTable has no room for the symbols or ranks.
  explicit MergeTable(const MergeRules& rules);

  // Returns a character's symbol. A space stands for U+2581.
  int32_t find_character(char32_t character) const { return characters_.find(character); }
  // Returns the merges. Merges with equal scores have equal ranks.
  const PairTable& pairs() const { return pairs_; }
  // Returns false if no token contains the characters `left` and `right` next to each other, so
  // that a word may be cut between them. The arguments are single characters' symbols.
  bool can_join(int32_t left, int32_t right) const {
    if ((left | right) < 0 || !is_followed_[left] || !is_preceded_[right]) return false;
    return neighbours_.find_near(left, right).exists();
  }

  int32_t num_pieces() const { return num_pieces_; }
  size_t num_symbols() const { return is_followed_.size(); }
  // True if no piece has U+2581 after another character, so nothing merges across the start of a
  // word.
  bool cuts_before_spaces() const { return cuts_before_spaces_; }

 private:
  void add_neighbours(std::string_view text);

  int32_t num_pieces_ = 0;
  bool cuts_before_spaces_ = true;
  CharacterTable characters_;
  PairTable pairs_;
  PairTable neighbours_;  // pairs of adjacent characters inside tokens
  // By symbol: some token has a character after it (is_followed_) or before it (is_preceded_).
  std::vector<uint8_t> is_followed_;
  std::vector<uint8_t> is_preceded_;
};

}  // namespace fastsft
