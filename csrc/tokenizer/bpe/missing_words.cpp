#include "tokenizer/bpe/missing_words.h"

namespace fastsft {

std::span<const uint32_t> MissingWords::learn(const WordBatch& batch, const WordIndex& index,
                                              WordCache& cache) {
  const bool are_many = count_ >= kMany;
  count_ = 0;
  if (!are_many) return {};
  count_ = batch.find_missing(cache, words_);
  for (size_t i = 0; i < count_; ++i) index.prefetch(batch.hash(words_[i]));
  size_t num_others = 0;
  for (size_t i = 0; i < count_; ++i) {
    const uint32_t word = words_[i];
    const WordCache::Key& key = batch.key(word);
    const uint32_t hash = batch.hash(word);
    const int32_t id = index.find(key, hash);
    words_[num_others] = word;
    if (id == WordIndex::kMissing) {
      ++num_others;
    } else if (cache.find(key, hash) == nullptr) {  // it may be in the batch twice
      const PackedToken token = pack_token(id, static_cast<uint32_t>(batch.word(word).size()));
      cache.insert(key, hash, {&token, 1});
    }
  }
  return std::span(words_).first(num_others);
}

}  // namespace fastsft
