#include "tokenizer/bpe/word_batch.h"

namespace fastsft {

void WordBatch::load(std::string_view text, size_t begin, std::span<const uint32_t> ends,
                     const WordCache& cache) {
  text_ = text;
  begin_ = begin;
  ends_ = ends;
  size_t i = 0;
  size_t at = begin;
  const auto add = [&](const WordCache::Key& key) {
    const uint32_t hash = WordCache::hash_of(key);
    cache.prefetch(hash);
    keys_[i] = key;
    hashes_[i] = hash;
    at = ends[i];
  };
  for (; i < ends.size() && at + WordCache::kLoaded <= text.size(); ++i) {
    add(WordCache::load_key(text.data() + at, ends[i] - at));
  }
  if (i == ends.size()) return;
  // The last words, in fewer than kLoaded bytes, are read from a padded copy.
  char tail[2 * WordCache::kLoaded] = {};
  const size_t first = at;
  std::memcpy(tail, text.data() + first, text.size() - first);
  for (; i < ends.size(); ++i) add(WordCache::load_key(tail + (at - first), ends[i] - at));
}

size_t WordBatch::find_missing(const WordCache& cache,
                               std::array<uint32_t, kMaxWords>& missing) const {
  size_t count = 0;
  for (size_t i = 0; i < size(); ++i) {
    missing[count] = static_cast<uint32_t>(i);
    const bool is_word = keys_[i].low != WordCache::kNoWord.low || keys_[i].high != 0;
    count += static_cast<size_t>(is_word & (cache.find(keys_[i], hashes_[i]) == nullptr));
  }
  return count;
}

std::span<const uint32_t> CacheMisses::resolve(const WordBatch& batch, const WordIndex& index,
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
    } else if (cache.find(key, hash) == nullptr) {  // the word may occur twice in the batch
      const PackedToken token = pack_token(id, static_cast<uint32_t>(batch.word(word).size()));
      cache.insert(key, hash, {&token, 1});
    }
  }
  return std::span(words_).first(num_others);
}

}  // namespace fastsft
