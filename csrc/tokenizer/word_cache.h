#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fastsft {

// A token inside a word: its id and how many bytes of the word it covers.
struct WordToken {
  int32_t id = 0;
  uint32_t size = 0;
};

// Words already encoded, so that each is merged once. Words up to 15 bytes lie in an open table of
// 32-byte slots, longer ones in a map; both are bounded (when full, words are encoded but no longer
// remembered).
class WordCache {
 public:
  // A word of up to 15 bytes as two numbers: its bytes padded with zeros, the size in the last
  // byte.
  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
    bool operator==(const Key&) const = default;
  };
  static constexpr size_t kMaxShort = 15;
  static constexpr size_t kMaxLong = 96;

  WordCache();

  static Key make_key(std::string_view word);

  // Nothing remembered: an empty span. What is returned is good until the next call of `insert`.
  std::span<const WordToken> find(const Key& key) const;
  std::span<const WordToken> find_long(std::string_view word) const;

  void insert(const Key& key, std::span<const WordToken> tokens);
  void insert_long(std::string_view word, std::span<const WordToken> tokens);

 private:
  struct Slot {
    Key key;  // all zero when empty: a word has at least one byte, so its size byte is not zero
    uint32_t begin = 0;
    uint32_t count = 0;
    WordToken first;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  size_t slot_of(const Key& key) const;
  void grow();

  std::vector<Slot> slots_;
  size_t num_used_ = 0;
  std::vector<WordToken> arena_;
  std::unordered_map<std::string, std::vector<WordToken>, TextHash, std::equal_to<>> long_words_;
};

}  // namespace fastsft
