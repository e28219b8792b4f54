#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/character_table.h"
#include "tokenizer/merge_rules.h"

namespace fastsft {

// What two neighbouring symbols become. Smaller ranks merge first; equal scores have equal ranks.
struct Merge {
  int32_t rank = kNone;
  int32_t symbol = kNone;

  static constexpr int32_t kNone = INT32_MAX;
  bool exists() const { return rank != kNone; }
};

// MergeRules, ready to be looked up. A symbol is a piece (its number is the id), a character that
// only occurs inside pieces (numbered from `num_pieces` up), or kUnknown.
class MergeTable {
 public:
  static constexpr int32_t kUnknown = CharacterTable::kMissing;

  explicit MergeTable(const MergeRules& rules);

  // A space stands for U+2581.
  int32_t find_character(char32_t character) const { return characters_.find(character); }
  Merge find(int32_t left, int32_t right) const {
    if ((left | right) < 0) return {};
    return merges_[slot_of(merges_, pair_key(left, right))].merge;
  }
  // False when no token can hold the characters `left` and `right` one after the other: words may
  // then be cut between them. Of characters, not of merged symbols.
  bool can_join(int32_t left, int32_t right) const {
    if ((left | right) < 0 || !is_followed_[left] || !is_preceded_[right]) return false;
    return neighbours_[slot_of(neighbours_, pair_key(left, right))].merge.exists();
  }

  int32_t num_pieces() const { return num_pieces_; }
  // No piece has U+2581 after another character, so nothing merges across the start of a word.
  bool cuts_before_spaces() const { return cuts_before_spaces_; }
  // No piece has U+2581 after any character, so that each space begins a word.
  bool cuts_at_every_space() const { return cuts_at_every_space_; }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  static size_t slot_of(const std::vector<Slot>& slots, uint64_t key) {
    const size_t mask = slots.size() - 1;
    size_t slot = (key * 0x9E3779B97F4A7C15ull >> 32) & mask;
    while (slots[slot].key != key && slots[slot].key != kEmpty) slot = (slot + 1) & mask;
    return slot;
  }
  static void insert(std::vector<Slot>& slots, size_t& used, uint64_t key, Merge merge);

  void add_neighbours(std::string_view text, size_t& used);

  int32_t num_pieces_ = 0;
  bool cuts_before_spaces_ = true;
  bool cuts_at_every_space_ = true;
  CharacterTable characters_;
  std::vector<Slot> merges_;
  std::vector<Slot> neighbours_;      // pairs of characters inside tokens
  std::vector<uint8_t> is_followed_;  // by symbol: some token has a character behind it,
  std::vector<uint8_t> is_preceded_;  // before it
};

}  // namespace fastsft
