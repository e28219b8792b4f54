#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/bpe/word_cache.h"

namespace fastsft {

// Byte-pair merges: of all neighbours the pair of the lowest rank joins first, the leftmost of
// equals. Short words are looked through side by side, long ones use a heap: n log n at worst.
// Keeps its buffers between calls; one thread at a time.
class PairMerger {
 public:
  explicit PairMerger(const PairTable& table) : table_(&table) {}

  // The ids are those of single bytes or characters, -1 for one that joins with nothing.
  void merge(std::vector<WordToken>& tokens);

 private:
  struct Candidate {
    uint32_t rank;
    int32_t left;
    int32_t right;
    int32_t id;
    uint32_t size;  // of both when it was made: a grown neighbour makes it stale
  };
  static bool is_later(const Candidate& a, const Candidate& b);

  template <size_t kLanes>
  void merge_short(std::vector<WordToken>& tokens) const;
  void merge_long(std::vector<WordToken>& tokens);
  void push_candidate(const std::vector<WordToken>& tokens, int32_t left, int32_t right);
  void join(std::vector<WordToken>& tokens, const Candidate& candidate);

  const PairTable* table_;
  std::vector<int32_t> previous_;
  std::vector<int32_t> next_;
  std::vector<Candidate> heap_;
};

}  // namespace fastsft
