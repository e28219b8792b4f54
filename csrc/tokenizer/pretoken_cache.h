#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/word_cache.h"

namespace fastsft {

// Words already encoded, so that each is merged once: two ways of 32-byte slots for words of up to
// 15 bytes and four tokens, a map for the rest. Bounded; when full, older words make room. One
// thread at a time.
class PretokenCache {
 public:
  static constexpr size_t kMaxShort = 15;
  static constexpr size_t kMaxLong = 256;
  static constexpr size_t kMaxPacked = 4;

  // A word of up to 15 bytes: its bytes padded with zeros, the size in the last byte. Never all
  // zero.
  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
    bool operator==(const Key&) const = default;
  };

  // The tokens of a short word, id << 4 | size each; unused ones are zero.
  struct Slot {
    Key key;
    uint32_t tokens[kMaxPacked] = {};
  };
  static WordToken unpack(uint32_t token) { return {static_cast<int32_t>(token >> 4), token & 15}; }

  PretokenCache();

  // `readable` bytes may be read from `word`, at least `size`.
  static Key make_key(const char* word, size_t size, size_t readable);

  // nullptr when the word is not remembered.
  const Slot* find(const Key& key) const {
    const Slot* pair = &slots_[2 * bucket_of(key)];
    if (pair[0].key == key) return pair;
    return pair[1].key == key ? pair + 1 : nullptr;
  }
  // An empty span when the word is not remembered; good until the next call of insert_long.
  std::span<const WordToken> find_long(std::string_view word) const;

  // A word of more than kMaxPacked tokens, or with an id beyond 28 bits, must go into the map.
  static bool is_packable(std::span<const WordToken> tokens);
  void insert(const Key& key, std::span<const WordToken> tokens);
  void insert_long(std::string_view word, std::span<const WordToken> tokens);

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  size_t bucket_of(const Key& key) const {
    const auto product = static_cast<unsigned __int128>(key.low ^ 0x9E3779B97F4A7C15ull) *
                         (key.high ^ 0xD6E8FEB86659FD93ull);
    return (static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64)) & mask_;
  }
  void place(const Slot& slot);
  void grow();

  std::vector<Slot> slots_;
  size_t mask_ = 0;  // of buckets, two slots each
  size_t num_inserted_ = 0;
  std::unordered_map<std::string, std::vector<WordToken>, TextHash, std::equal_to<>> long_words_;
};

inline PretokenCache::Key PretokenCache::make_key(const char* word, size_t size, size_t readable) {
  uint64_t bytes[2] = {};
  if (readable >= 16) {
    std::memcpy(bytes, word, 16);
    const uint64_t low = size >= 8 ? ~0ull : (1ull << 8 * size) - 1;
    const uint64_t high = size > 8 ? (1ull << 8 * (size - 8)) - 1 : 0;
    bytes[0] &= low;
    bytes[1] &= high;
  } else {
    std::memcpy(bytes, word, size);
  }
  return {bytes[0], bytes[1] | static_cast<uint64_t>(size) << 56};
}

}  // namespace fastsft
