#pragma once

#include <cstddef>
#include <cstdint>

#include "core/anonymous_mapping.h"
#include "tokenizer/bpe/word_cache.h"

namespace fastsft {

// A table from words with at most WordCache::kMaxWord bytes to ids. The keys and hashes are the
// same as in WordCache. Several threads may read it at once. To look up several words, call
// `prefetch` for all words first.
class WordIndex {
 public:
  static constexpr int32_t kMissing = -1;

  // Reserves room for `num_words`. The table grows when needed.
  explicit WordIndex(size_t num_words = 0);

  // Adds a word. If the word is already in the table, its id stays.
  void add(const WordCache::Key& key, int32_t id);

  void prefetch(uint32_t hash) const {
    __builtin_prefetch(keys() + (hash & mask_));
    __builtin_prefetch(ids() + (hash & mask_));
  }
  int32_t find(const WordCache::Key& key, uint32_t hash) const {
    const size_t at = place_of(key, hash);
    return keys()[at].high == 0 ? kMissing : ids()[at];
  }

 private:
  WordCache::Key* keys() const { return static_cast<WordCache::Key*>(keys_.data()); }
  int32_t* ids() const { return static_cast<int32_t*>(ids_.data()); }
  // Returns the word's index, or the empty index for inserting the word. A key is never zero,
  // because it contains the word's size.
  size_t place_of(const WordCache::Key& key, uint32_t hash) const {
    size_t at = hash & mask_;
    while (((keys()[at].low ^ key.low) | (keys()[at].high ^ key.high)) != 0 &&
           keys()[at].high != 0) {
      at = (at + 1) & mask_;
    }
    return at;
  }
  void grow();

  size_t mask_;
  size_t num_words_ = 0;
  AnonymousMapping keys_;
  AnonymousMapping ids_;
};

}  // namespace fastsft
