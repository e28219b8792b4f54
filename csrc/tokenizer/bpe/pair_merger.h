#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/bpe/pair_table.h"
#include "tokenizer/bpe/word_cache.h"

namespace fastsft {

// Merges byte pairs: of all adjacent pairs the pair with the lowest rank merges first; if ranks are
// equal, the leftmost. Short words search all pairs at every step, several pairs at once. Long
// words use a heap and take n log n steps at worst. An object keeps its buffers between calls, so
// only one thread may use it at a time.
class PairMerger {
 public:
  explicit PairMerger(const PairTable& table) : table_(&table) {}

  // Merges `tokens` in place. Each is a single byte or character; id -1 stands for a character that
  // never merges.
  void merge(std::vector<WordToken>& tokens);

 private:
  struct Candidate {
    uint32_t rank;
    int32_t left;
    int32_t right;
    int32_t id;
    // Both tokens' total size when the candidate was made. If a token has grown since, the
    // candidate is outdated.
    uint32_t size;
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
