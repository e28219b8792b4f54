#pragma once

#include <cstddef>
#include <cstdint>

#include "core/anonymous_mapping.h"
#include "tokenizer/bpe/word_cache.h"

namespace fastsft {

// Ids of words of 1 to WordCache::kMaxWord bytes, by the same keys and hashes as in a WordCache.
// All threads may read it; `prefetch` first where several are looked up.
class WordIndex {
 public:
  static constexpr int32_t kMissing = -1;

  // With room for `num_words`; grows where there are more.
  explicit WordIndex(size_t num_words = 0);

  // The first id of a word stays.
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
  // Of the word, or the empty one where it would be: the size in a key is not zero.
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
