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

// A token inside a short word: the id in the low 24 bits, and above them the token's size in bytes.
using PackedToken = uint32_t;

constexpr PackedToken pack_token(int32_t id, uint32_t size) {
  return static_cast<uint32_t>(id) | size << 24;
}
constexpr int32_t packed_id(PackedToken token) { return static_cast<int32_t>(token & 0xFFFFFF); }
constexpr uint32_t packed_size(PackedToken token) { return token >> 24; }

// A cache of encoded words with 1 to 15 bytes. A bucket is one cache line with two entries. If a
// bucket is full, its neighbour takes the word; if both are full, the bucket's second entry is
// overwritten. Ids must be below 2^24.
class WordCache {
 public:
  // A word as two integers: its bytes, padded with zeros, and its size in the last byte.
  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
  };
  // A key that no entry has.
  static constexpr Key kNoWord = {~uint64_t{0}, 0};

  // A word and its tokens. The key's top four bits hold the token count. An empty entry is all
  // zeros.
  struct Entry {
    Key key;
    // if there are more than four, tokens[0] is their position in `more_`
    std::array<PackedToken, 4> tokens;

    size_t count() const { return key.high >> 60; }
    bool holds(const Key& wanted) const {
      return ((key.low ^ wanted.low) | ((key.high ^ wanted.high) << 4)) == 0;
    }
  };
  static constexpr size_t kMaxWord = 15;
  static constexpr size_t kInline = 4;
  static constexpr size_t kLoaded = 16;  // bytes that `load_key` reads

  // The cache begins with 512 KiB, of which only used pages take memory, and grows to `max_buckets`
  // buckets with 64 bytes each. `max_buckets` must be a power of two.
  explicit WordCache(size_t max_buckets);

  // Returns the key of the first `size` bytes at `bytes`, and kNoWord if `size` is above kMaxWord.
  // Reads kLoaded bytes.
  static Key load_key(const char* bytes, size_t size);
  // Returns the same key but reads `size` bytes only. `size` is at most kMaxWord.
  static Key make_key(const char* bytes, size_t size);

  static uint32_t hash_of(const Key& key) {
    __extension__ using Wide = unsigned __int128;
    const Wide product =
        static_cast<Wide>(key.low ^ 0x9E3779B97F4A7C15ull) * (key.high ^ 0xD6E8FEB86659FD93ull);
    return static_cast<uint32_t>(static_cast<uint64_t>(product >> 64) ^
                                 static_cast<uint64_t>(product));
  }
  void prefetch(uint32_t hash) const { __builtin_prefetch(bucket_of(hash)); }
  // Selects between the two entries without a branch, because a branch would be unpredictable. A
  // word is in the neighbour only if its own bucket is full, and entries are never removed.
  const Entry* find(const Key& key, uint32_t hash) const {
    const Entry* bucket = bucket_of(hash);
    const Entry* entry = bucket + !bucket->holds(key);
    if (entry->holds(key)) return entry;
    return bucket[1].count() == 0 ? nullptr : find_beside(key, hash);
  }
  // Returns all tokens in an entry. The result is valid until the next `insert`.
  std::span<const PackedToken> tokens(const Entry& entry) const {
    if (entry.count() <= kInline) return {entry.tokens.data(), entry.count()};
    return {more_.data() + entry.tokens[0], entry.count()};
  }

  // `tokens`: 1 to 15 tokens.
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
  size_t num_inserted_ = 0;        // words inserted since the last growth
  std::vector<PackedToken> more_;  // 16 tokens each for entries with more than four
};

namespace internal {

// For each word size: a mask for the word's own bytes among 16 loaded bytes, and a value to add
// to them to make the key.
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

// A token inside a word: its id, and its size in bytes.
struct WordToken {
  int32_t id = 0;
  uint32_t size = 0;
};

// A cache for encoded words that are too long for WordCache. A full cache is cleared.
class LongWordCache {
 public:
  static constexpr size_t kMaxWord = 64;

  // Returns an empty span if the word is not in the cache. The result is valid until the next
  // `insert`.
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
