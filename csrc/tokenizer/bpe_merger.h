#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/merge_table.h"

namespace fastsft {

// A symbol on its way through the merges and the bytes of text it stands for.
struct Symbol {
  int32_t id = 0;
  uint32_t size = 0;
};

// SentencePiece's BPE: of all neighbours that form a piece the pair with the best score merges
// first, the leftmost of equals. Short runs are scanned, long ones use a heap: n log n at worst.
// Keeps its buffers between calls; one thread at a time.
class BpeMerger {
 public:
  explicit BpeMerger(const MergeTable& table) : table_(&table) {}

  void merge(std::vector<Symbol>& symbols);

 private:
  struct Candidate {
    int32_t rank;
    int32_t left;
    int32_t right;
    int32_t symbol;
    uint32_t size;  // of both when it was made: a grown neighbour makes it stale
  };
  static bool is_later(const Candidate& a, const Candidate& b);

  void merge_short(std::vector<Symbol>& symbols);
  void merge_long(std::vector<Symbol>& symbols);
  void push_candidate(const std::vector<Symbol>& symbols, int32_t left, int32_t right);
  void join(std::vector<Symbol>& symbols, const Candidate& candidate);

  const MergeTable* table_;
  std::vector<int32_t> previous_;
  std::vector<int32_t> next_;
  std::vector<Candidate> heap_;
};

}  // namespace fastsft
