#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/sentencepiece_model.h"

namespace fastsft {

// What two neighbouring symbols become. Smaller ranks merge first; equal scores have equal ranks.
struct Merge {
  int32_t rank = kNone;
  int32_t symbol = kNone;

  static constexpr int32_t kNone = INT32_MAX;
  bool exists() const { return rank != kNone; }
};

// The vocabulary as merges of symbol pairs. A symbol is a piece (its number is the id) or one
// character: characters that only occur inside pieces are numbered from `num_pieces` up, others are
// kUnknown.
class MergeTable {
 public:
  static constexpr int32_t kUnknown = -1;

  explicit MergeTable(const SentencePieceModel& model);

  // `character` is the UTF-8 of one character; a space stands for U+2581.
  int32_t find_character(std::string_view character) const;
  Merge find(int32_t left, int32_t right) const;

  int32_t num_pieces() const { return num_pieces_; }
  // No piece has U+2581 after another character, so nothing merges across the start of a word.
  bool cuts_before_spaces() const { return cuts_before_spaces_; }

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  void number_characters(const SentencePieceModel& model);
  void add_splits(const SentencePieceModel& model);
  void insert(uint64_t key, Merge merge);
  size_t slot_of(uint64_t key) const;

  int32_t num_pieces_ = 0;
  bool cuts_before_spaces_ = true;
  std::array<int32_t, 128> ascii_;
  std::unordered_map<uint32_t, int32_t> characters_;  // UTF-8 bytes packed into 32 bits
  std::vector<Slot> slots_;
  size_t num_used_ = 0;
};

}  // namespace fastsft
