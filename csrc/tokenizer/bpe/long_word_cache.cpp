#include "tokenizer/bpe/long_word_cache.h"

namespace fastsft {
namespace {

constexpr size_t kMaxWords = 1 << 15;

}  // namespace

std::span<const WordToken> LongWordCache::find(std::string_view word) const {
  if (word.size() > kMaxWord) return {};
  const auto found = words_.find(word);
  if (found == words_.end()) return {};
  return found->second;
}

void LongWordCache::insert(std::string_view word, std::span<const WordToken> tokens) {
  if (word.size() > kMaxWord) return;
  if (words_.size() >= kMaxWords) words_.clear();
  words_.emplace(std::string(word), std::vector<WordToken>(tokens.begin(), tokens.end()));
}

}  // namespace fastsft
