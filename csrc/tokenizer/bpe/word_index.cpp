#include "tokenizer/bpe/word_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace fastsft {

WordIndex::WordIndex(size_t num_words)
    : mask_(std::bit_ceil(std::max<size_t>(2 * num_words, 2)) - 1),
      keys_((mask_ + 1) * sizeof(WordCache::Key)),
      ids_((mask_ + 1) * sizeof(int32_t)) {}

void WordIndex::add(const WordCache::Key& key, int32_t id) {
  if (2 * num_words_ > mask_) grow();
  const size_t at = place_of(key, WordCache::hash_of(key));
  if (keys()[at].high != 0) return;
  keys()[at] = key;
  ids()[at] = id;
  ++num_words_;
}

void WordIndex::grow() {
  WordIndex larger(mask_ + 1);
  for (size_t at = 0; at <= mask_; ++at) {
    if (keys()[at].high != 0) larger.add(keys()[at], ids()[at]);
  }
  std::swap(*this, larger);
}

}  // namespace fastsft
