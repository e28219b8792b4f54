#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tokenizer/bpe/word_batch.h"
#include "tokenizer/bpe/word_cache.h"
#include "tokenizer/bpe/word_index.h"

namespace fastsft {

// The words of a text that its cache does not hold yet. While there are many of them, those of a
// batch are looked up together, so that none waits for the memory of another.
class MissingWords {
 public:
  // To be called for each batch, after it is loaded. The words of `index` that the cache lacks are
  // put into it; returns the others, nothing when the batch before had few.
  std::span<const uint32_t> learn(const WordBatch& batch, const WordIndex& index, WordCache& cache);
  // A word was met that the cache did not hold.
  void count_one() { ++count_; }

 private:
  static constexpr size_t kMany = 8;

  size_t count_ = WordBatch::kMaxWords;  // of the last batch
  std::array<uint32_t, WordBatch::kMaxWords> words_;
};

}  // namespace fastsft
