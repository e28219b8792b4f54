#include "tokenizer/bpe/word_cache.h"

#include <algorithm>
#include <bit>

namespace fastsft {
namespace {

constexpr size_t kFirstBuckets = size_t{1} << 13;
constexpr size_t kGrowth = 4;
constexpr size_t kChunk = 16;
constexpr size_t kMaxMore = size_t{1} << 20;  // 4 MiB

}  // namespace

WordCache::WordCache(size_t max_buckets)
    : pages_(std::min(max_buckets, kFirstBuckets) * 2 * sizeof(Entry)),
      entries_(static_cast<Entry*>(pages_.data())),
      mask_(std::min(max_buckets, kFirstBuckets) - 1),
      max_buckets_(max_buckets) {
  static_assert(sizeof(Entry) == 32 && std::endian::native == std::endian::little);
}

// Stores more than kInline tokens in `more_`. Reuses the chunk if the overwritten entry has one.
// Returns false if there is no room left.
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

const WordCache::Entry* WordCache::find_beside(const Key& key, uint32_t hash) const {
  const Entry* entry = bucket_of(hash ^ 1);
  if (entry->holds(key)) return entry;
  return entry[1].holds(key) ? entry + 1 : nullptr;
}

// Returns the first free entry in the two buckets, or else the second entry in the word's own
// bucket.
WordCache::Entry* WordCache::find_place(uint32_t hash) const {
  Entry* own = bucket_of(hash);
  if (own->count() == 0) return own;
  if (own[1].count() == 0) return own + 1;
  Entry* beside = bucket_of(hash ^ 1);
  if (beside->count() == 0) return beside;
  return beside[1].count() == 0 ? beside + 1 : own + 1;
}

// No word is lost: the words from two neighbouring buckets always fit into their new buckets.
void WordCache::grow() {
  const AnonymousMapping old_pages = std::move(pages_);
  const Entry* old = entries_;
  const size_t count = 2 * (mask_ + 1);
  const size_t num_buckets = std::min(kGrowth * (mask_ + 1), max_buckets_);
  pages_ = AnonymousMapping(2 * num_buckets * sizeof(Entry));
  entries_ = static_cast<Entry*>(pages_.data());
  mask_ = num_buckets - 1;
  num_inserted_ = 0;
  for (size_t i = 0; i < count; ++i) {
    if (old[i].count() == 0) continue;
    *find_place(hash_of({old[i].key.low, old[i].key.high & ~(uint64_t{15} << 60)})) = old[i];
  }
}

void WordCache::insert(const Key& key, uint32_t hash, std::span<const PackedToken> tokens) {
  if (++num_inserted_ > mask_ && mask_ + 1 < max_buckets_) grow();
  Entry* entry = find_place(hash);
  if (tokens.size() > kInline) {
    if (!place_rest(*entry, tokens)) return;
  } else {
    std::copy(tokens.begin(), tokens.end(), entry->tokens.begin());
  }
  entry->key = {key.low, key.high | static_cast<uint64_t>(tokens.size()) << 60};
}

}  // namespace fastsft
