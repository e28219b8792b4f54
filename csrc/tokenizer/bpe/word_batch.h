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

// Some words of a text that follow each other. All are looked up before the first is needed, so
// that the cache lines are on their way.
class WordBatch {
 public:
  static constexpr size_t kMaxWords = 256;

  // The words [begin, ends[0]), [ends[0], ends[1]), ... of `text`; `ends` stays until they are
  // written.
  void load(std::string_view text, size_t begin, std::span<const uint32_t> ends,
            const WordCache& cache);

  size_t size() const { return ends_.size(); }
  std::string_view word(size_t i) const {
    const size_t begin = i == 0 ? begin_ : ends_[i - 1];
    return text_.substr(begin, ends_[i] - begin);
  }
  const WordCache::Key& key(size_t i) const { return keys_[i]; }
  uint32_t hash(size_t i) const { return hashes_[i]; }

  // The words of at most WordCache::kMaxWord bytes that `cache` does not hold; returns how many.
  size_t find_missing(const WordCache& cache, std::array<uint32_t, kMaxWords>& missing) const;

  // Writes the tokens of words that `cache` holds; for others calls `encode(word, key, hash)`,
  // which writes them itself and may add to the cache. The key is WordCache::kNoWord for a word
  // of more than WordCache::kMaxWord bytes.
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

// The words of a text that its cache does not hold yet. While there are many of them, those of a
// batch are looked up together, so that none waits for the memory of another.
class CacheMisses {
 public:
  // To be called for each batch, after it is loaded. The words of `index` that the cache lacks are
  // put into it; returns the others, nothing when the batch before had few.
  std::span<const uint32_t> resolve(const WordBatch& batch, const WordIndex& index,
                                    WordCache& cache);
  // A word was met that the cache did not hold.
  void count_one() { ++count_; }

 private:
  static constexpr size_t kMany = 8;

  size_t count_ = WordBatch::kMaxWords;  // of the last batch
  std::array<uint32_t, WordBatch::kMaxWords> words_;
};

}  // namespace fastsft
