#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/bpe/word_cache.h"

namespace fastsft {

// The merge state for a word (at most kLanes - 1 tokens). Pairs are packed as (rank, left
// position), so the minimum is the leftmost pair with the lowest rank. A merged token keeps its
// first part's position. Sentinels at both ends make boundary checks unnecessary. Several words are
// interleaved to hide memory latency.
template <size_t kLanes>
class MergeLanes {
 public:
  static constexpr size_t kMaxTokens = std::min<size_t>(kLanes - 1, 62);

  // Starts with a word's tokens: at most kMaxTokens, each a single byte or character.
  void begin(const PairTable& table, std::span<const WordToken> tokens) {
    const size_t count = tokens.size();
    pairs_.fill(kNoPair);
    ids_[0] = PairTable::kNothing;
    uint32_t size = 0;
    for (size_t i = 0; i < count; ++i) {
      ids_[i + 1] = tokens[i].id;
      begins_[i + 1] = size;
      size += tokens[i].size;
    }
    ids_[count + 1] = PairTable::kNothing;
    begins_[count + 1] = size;
    there_ = ~uint64_t{0} >> (62 - count);
    for (size_t i = 1; i < count; ++i) set_pair(i, table.find_near(ids_[i], ids_[i + 1]));
  }

  // Merges the best pair. Returns false if no pair can merge any more.
  bool join_best(const PairTable& table) {
    const int32_t best = find_best();
    if (best == kNoPair) return false;
    const size_t at = best & ((1 << kPositionBits) - 1);
    const uint64_t behind = there_ & (~uint64_t{1} << at);
    const size_t next = __builtin_ctzll(behind);
    const size_t after = __builtin_ctzll(behind & (behind - 1));
    const size_t before = 63 - __builtin_clzll(there_ & ((uint64_t{1} << at) - 1));
    ids_[at] = joined_[at];
    there_ ^= uint64_t{1} << next;
    pairs_[next] = kNoPair;
    const PairTable::Join with_after = table.find(ids_[at], ids_[after]);
    const PairTable::Join with_before = table.find(ids_[before], ids_[at]);
    set_pair(at, with_after);
    set_pair(before, with_before);
    return true;
  }

  // Calls `visit(id, size)` for each remaining token.
  template <typename Visit>
  void visit_tokens(const Visit& visit) const {
    for (uint64_t left = there_ & (there_ - 1); (left & (left - 1)) != 0;) {
      const size_t at = __builtin_ctzll(left);
      left &= left - 1;
      visit(ids_[at], begins_[__builtin_ctzll(left)] - begins_[at]);
    }
  }

 private:
  static constexpr int kPositionBits = 6;  // a rank and a position together take 28 bits
  static constexpr int32_t kNoPair = INT32_MAX;

  void set_pair(size_t at, PairTable::Join join) {
    const auto pair = static_cast<int32_t>(join.rank << kPositionBits | at);
    pairs_[at] = join.exists() ? pair : kNoPair;
    joined_[at] = join.id;
  }
  // Uses four independent minima, which the processor computes in parallel.
  int32_t find_best() const {
    std::array<int32_t, 4> best = {pairs_[0], pairs_[1], pairs_[2], pairs_[3]};
    for (size_t i = 4; i < kLanes; i += 4) {
      for (size_t j = 0; j < 4; ++j) best[j] = std::min(best[j], pairs_[i + j]);
    }
    return lower(lower(best[0], best[1]), lower(best[2], best[3]));
  }

  // Avoids std::min, for which compilers emit a branch here that no processor can predict.
  static int32_t lower(int32_t a, int32_t b) {
    return b ^ ((a ^ b) & -static_cast<int32_t>(a < b));
  }

  uint64_t there_;
  alignas(64) std::array<int32_t, kLanes> pairs_;
  std::array<int32_t, kLanes> joined_;
  std::array<int32_t, kLanes + 1> ids_;
  std::array<uint32_t, kLanes + 1> begins_;
};

}  // namespace fastsft
