#include "tokenizer/word_cache.h"

#include <algorithm>
#include <bit>

namespace fastsft {
namespace {

constexpr size_t kChunk = 16;
constexpr size_t kMaxMore = size_t{1} << 20;  // 4 MiB

}  // namespace

WordCache::WordCache(size_t num_buckets)
    : pages_(num_buckets * 2 * sizeof(Entry)),
      entries_(static_cast<Entry*>(pages_.data())),
      mask_(num_buckets - 1) {
  static_assert(sizeof(Entry) == 32 && std::endian::native == std::endian::little);
}

// A chunk of the entry that is written over is taken again. False when there is no room left.
bool WordCache::place_rest(Entry& entry, std::span<const PackedToken> tokens) {
  size_t at = entry.tokens[0];
  if (entry.count() <= kInline) {
    if (more_.size() >= kMaxMore) return false;
    at = more_.size();
    more_.resize(at + kChunk);
  }
  std::copy(tokens.begin(), tokens.end(), more_.begin() + static_cast<ptrdiff_t>(at));
  entry.tokens[0] = static_cast<uint32_t>(at);
  return true;
}

void WordCache::insert(const Key& key, size_t bucket, std::span<const PackedToken> tokens) {
  Entry* entry = entries_ + 2 * bucket;
  if (entry->count() != 0) ++entry;
  if (tokens.size() > kInline) {
    if (!place_rest(*entry, tokens)) return;
  } else {
    std::copy(tokens.begin(), tokens.end(), entry->tokens.begin());
  }
  entry->key = {key.low, key.high | static_cast<uint64_t>(tokens.size()) << 60};
}

}  // namespace fastsft
