#pragma once

#include <vector>

#include "tokenizer/bpe/pair_table.h"

namespace fastsft {

// Tokens that the merges make of their own bytes for sure, so that a word with these bytes need
// not be merged. A token is proven by one of its merges: both parts are proven, their own merges
// come before it, and at no moment while the two halves grow does a pair across the border between
// them join first. Others may be such tokens too.
class SingleTokenProof {
 public:
  // Of ids below `num_ids`. `pairs` stays.
  SingleTokenProof(const PairTable& pairs, size_t num_ids);

  // A byte or character that the merges begin with.
  void add_symbol(int32_t id);
  // A merge; merges of lower rank first.
  void add(int32_t left, int32_t right, PairTable::Join join);

  bool contains(int32_t id) const { return merges_[id].rank != kUnproven; }

 private:
  static constexpr int32_t kUnproven = -2;
  static constexpr int32_t kSymbol = -1;  // before all merges
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t rank = kUnproven;
  };

  bool is_crossed(int32_t left, int32_t right) const;

  const PairTable* pairs_;
  std::vector<Merge> merges_;  // the last one of each proven token, by id
};

}  // namespace fastsft
