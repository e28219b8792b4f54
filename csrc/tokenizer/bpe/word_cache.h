#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/anonymous_mapping.h"

namespace fastsft {

// A token inside a short word: the id in the low 24 bits, how many bytes it covers above them.
using PackedToken = uint32_t;

constexpr PackedToken pack_token(int32_t id, uint32_t size) {
  return static_cast<uint32_t>(id) | size << 24;
}
constexpr int32_t packed_id(PackedToken token) { return static_cast<int32_t>(token & 0xFFFFFF); }
constexpr uint32_t packed_size(PackedToken token) { return token >> 24; }

// Words of 1 to 15 bytes already encoded, so that each is merged once: buckets of two entries, one
// cache line each. Where a bucket is full its neighbour takes the word; where both are, the second
// entry is evicted. Ids must be below 2^24.
class WordCache {
 public:
  // A word as two numbers: its bytes padded with zeros, its size in the last byte.
  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
  };
  // Held by no entry.
  static constexpr Key kNoWord = {~uint64_t{0}, 0};

  // The number of tokens is in the top four bits of the key. All zeros when empty.
  struct Entry {
    Key key;
    std::array<PackedToken, 4> tokens;  // of more than four: where the rest is, then nothing

    size_t count() const { return key.high >> 60; }
    bool holds(const Key& wanted) const {
      return ((key.low ^ wanted.low) | ((key.high ^ wanted.high) << 4)) == 0;
    }
  };
  static constexpr size_t kMaxWord = 15;
  static constexpr size_t kInline = 4;
  static constexpr size_t kLoaded = 16;  // bytes that `load_key` reads

  // Grows from 512 KiB, of which only what is used takes memory, to `max_buckets` of 64 bytes, a
  // power of two.
  explicit WordCache(size_t max_buckets);

  // The first `size` of the kLoaded bytes at `bytes`; kNoWord when that is more than kMaxWord.
  static Key load_key(const char* bytes, size_t size);
  static Key make_key(const char* bytes, size_t size);  // reads `size` bytes only, up to kMaxWord

  static uint32_t hash_of(const Key& key) {
    __extension__ using Wide = unsigned __int128;
    const Wide product =
        static_cast<Wide>(key.low ^ 0x9E3779B97F4A7C15ull) * (key.high ^ 0xD6E8FEB86659FD93ull);
    return static_cast<uint32_t>(static_cast<uint64_t>(product >> 64) ^
                                 static_cast<uint64_t>(product));
  }
  void prefetch(uint32_t hash) const { __builtin_prefetch(bucket_of(hash)); }
  // Which of the two entries is a coin's throw, so nothing branches on it. Words go to the
  // neighbour only where the bucket is full, and nothing leaves it.
  const Entry* find(const Key& key, uint32_t hash) const {
    const Entry* bucket = bucket_of(hash);
    const Entry* entry = bucket + !bucket->holds(key);
    if (entry->holds(key)) return entry;
    return bucket[1].count() == 0 ? nullptr : find_beside(key, hash);
  }
  // All of an entry's tokens; good until the next `insert`.
  std::span<const PackedToken> tokens(const Entry& entry) const {
    if (entry.count() <= kInline) return {entry.tokens.data(), entry.count()};
    return {more_.data() + entry.tokens[0], entry.count()};
  }

  // `tokens`: 1 to 15 of them.
  void insert(const Key& key, uint32_t hash, std::span<const PackedToken> tokens);

 private:
  Entry* bucket_of(uint32_t hash) const { return entries_ + 2 * (hash & mask_); }
  const Entry* find_beside(const Key& key, uint32_t hash) const;
  Entry* find_place(uint32_t hash) const;
  void grow();
  bool place_rest(Entry& entry, std::span<const PackedToken> tokens);

  AnonymousMapping pages_;
  Entry* entries_;
  size_t mask_;
  size_t max_buckets_;
  size_t num_inserted_ = 0;        // since the last growth
  std::vector<PackedToken> more_;  // chunks of 16 for the entries that need them
};

namespace internal {

// What of 16 bytes belongs to a word of each size, and what comes to it.
struct KeyMask {
  WordCache::Key kept;
  WordCache::Key added;
};
constexpr std::array<KeyMask, WordCache::kMaxWord + 2> kKeyMasks = [] {
  std::array<KeyMask, WordCache::kMaxWord + 2> masks{};
  for (size_t size = 0; size <= WordCache::kMaxWord; ++size) {
    masks[size].kept.low = size >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * size) - 1;
    masks[size].kept.high = size <= 8 ? 0 : (uint64_t{1} << 8 * (size - 8)) - 1;
    masks[size].added.high = uint64_t{size} << 56;
  }
  masks[WordCache::kMaxWord + 1].added = WordCache::kNoWord;
  return masks;
}();

}  // namespace internal

inline WordCache::Key WordCache::load_key(const char* bytes, size_t size) {
  Key key;
  std::memcpy(&key.low, bytes, 8);
  std::memcpy(&key.high, bytes + 8, 8);
  const internal::KeyMask& mask = internal::kKeyMasks[std::min(size, kMaxWord + 1)];
  return {(key.low & mask.kept.low) | mask.added.low,
          (key.high & mask.kept.high) | mask.added.high};
}

inline WordCache::Key WordCache::make_key(const char* bytes, size_t size) {
  char padded[kLoaded] = {};
  std::memcpy(padded, bytes, size);
  return load_key(padded, size);
}

// A token inside a word: its id and how many bytes of the word it covers.
struct WordToken {
  int32_t id = 0;
  uint32_t size = 0;
};

// Words already encoded that are too long for WordCache. Bounded: when full it begins again.
class LongWordCache {
 public:
  static constexpr size_t kMaxWord = 64;

  // Nothing remembered: an empty span. Good until the next call of `insert`.
  std::span<const WordToken> find(std::string_view word) const {
    if (word.size() > kMaxWord) return {};
    const auto found = words_.find(word);
    if (found == words_.end()) return {};
    return found->second;
  }
  void insert(std::string_view word, std::span<const WordToken> tokens) {
    if (word.size() > kMaxWord) return;
    if (words_.size() >= kMaxWords) words_.clear();
    words_.emplace(std::string(word), std::vector<WordToken>(tokens.begin(), tokens.end()));
  }

 private:
  static constexpr size_t kMaxWords = 1 << 15;
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::vector<WordToken>, TextHash, std::equal_to<>> words_;
};

}  // namespace fastsft
