#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tokenizer/bpe/token_writer.h"
#include "tokenizer/bpe/word_cache.h"
#include "tokenizer/bpe/word_index.h"

namespace fastsft {

// Consecutive words that are looked up together: all cache lines are prefetched before the first is
// needed.
class WordBatch {
 public:
  static constexpr size_t kMaxWords = 256;

  // Loads the words [begin, ends[0]), [ends[0], ends[1]), ... of `text` and prefetches their cache
  // lines. `text` and `ends` must stay valid until the words are written.
  void load(std::string_view text, size_t begin, std::span<const uint32_t> ends,
            const WordCache& cache);

  size_t size() const { return ends_.size(); }
  std::string_view word(size_t i) const {
    const size_t begin = i == 0 ? begin_ : ends_[i - 1];
    return text_.substr(begin, ends_[i] - begin);
  }
  const WordCache::Key& key(size_t i) const { return keys_[i]; }
  uint32_t hash(size_t i) const { return hashes_[i]; }

  // Fills `missing` with the index of each word that is not in `cache` and has at most
  // WordCache::kMaxWord bytes. Returns their number.
  size_t find_missing(const WordCache& cache, std::array<uint32_t, kMaxWords>& missing) const;

  // Writes the tokens for the words in `cache`. For every other word it calls `encode(word, key,
  // hash)`, which must write the tokens itself and may add them to the cache. The key is
  // WordCache::kNoWord if the word is longer than WordCache::kMaxWord bytes.
  template <typename Output, typename Encode>
  void write(const WordCache& cache, TokenWriter<Output>& writer, const Encode& encode) const;

 private:
  std::string_view text_;
  size_t begin_ = 0;
  std::span<const uint32_t> ends_;
  std::array<WordCache::Key, kMaxWords> keys_;
  std::array<uint32_t, kMaxWords> hashes_;
};

template <typename Output, typename Encode>
void WordBatch::write(const WordCache& cache, TokenWriter<Output>& writer,
                      const Encode& encode) const {
  const size_t count = ends_.size();
  auto position = writer.open(count);
  for (size_t i = 0; i < count; ++i) {
    const WordCache::Entry* entry = cache.find(keys_[i], hashes_[i]);
    if (entry != nullptr && entry->count() <= WordCache::kInline) [[likely]] {
      TokenWriter<Output>::put_inline(position, entry->tokens, entry->count());
      continue;
    }
    writer.close(position);
    if (entry != nullptr) {
      writer.put(cache.tokens(*entry));
    } else {
      encode(word(i), keys_[i], hashes_[i]);
    }
    position = writer.open(count - i - 1);
  }
  writer.close(position);
}

// Handles words that the cache does not have yet. While there are many such words, a whole batch is
// looked up at once, so that memory accesses overlap.
class CacheMisses {
 public:
  // Copies missing words that are in `index` into the cache and returns the other missing words'
  // indices. Returns nothing if the previous batch had few missing words. Must be called for each
  // batch after its `load`.
  std::span<const uint32_t> resolve(const WordBatch& batch, const WordIndex& index,
                                    WordCache& cache);
  // Counts a word that the cache did not have.
  void count_one() { ++count_; }

 private:
  static constexpr size_t kMany = 8;

  size_t count_ = WordBatch::kMaxWords;  // missing words in the last batch
  std::array<uint32_t, WordBatch::kMaxWords> words_;
};

}  // namespace fastsft
