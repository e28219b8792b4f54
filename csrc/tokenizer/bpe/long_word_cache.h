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
