#pragma once

#include <vector>

#include "tokenizer/bpe/pair_table.h"

namespace fastsft {

// Proves that merging a token's bytes always gives the token itself, so that a word with these
// bytes need not be merged. The proof uses one merge that makes the token: both parts are proven,
// their own merges have lower ranks, and while the two parts form, no pair across the border
// between them ever merges first. The proof can miss some such tokens.
class SingleTokenProof {
 public:
  // Handles ids below `num_ids`. `pairs` must outlive this object.
  SingleTokenProof(const PairTable& pairs, size_t num_ids);

  // Adds a byte or character with which merging begins.
  void add_symbol(int32_t id);
  // Adds a merge. Merges must be added in rank order.
  void add(int32_t left, int32_t right, PairTable::Join join);

  bool contains(int32_t id) const { return merges_[id].rank != kUnproven; }

 private:
  static constexpr int32_t kUnproven = -2;
  static constexpr int32_t kSymbol = -1;  // lower than every merge's rank
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t rank = kUnproven;
  };

  bool is_crossed(int32_t left, int32_t right) const;

  const PairTable* pairs_;
  std::vector<Merge> merges_;  // each proven token's final merge, indexed by id
};

}  // namespace fastsft
