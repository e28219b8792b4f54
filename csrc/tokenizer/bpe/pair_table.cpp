#include "tokenizer/bpe/pair_table.h"

#include <algorithm>
#include <utility>

namespace fastsft {
namespace {

// most pairs per bucket on average; with room for five, few buckets are full
constexpr size_t kMostPerBucket = 3;

}  // namespace

PairTable::PairTable(size_t num_pairs)
    : num_buckets_(num_pairs * 2 / 5 + 16), pages_(num_buckets_ * sizeof(Bucket)) {
  static_assert(sizeof(Bucket) == 64);
}

PairTable::Join PairTable::find_further(uint64_t key) const {
  for (size_t at = index_of(key);; at = (at + 1) % num_buckets_) {
    const Bucket& bucket = buckets()[at];
    for (size_t i = 0; i < kPairs; ++i) {
      if (bucket.pairs[i] >> kRankBits == key) return {rank_of(bucket.pairs[i]), bucket.ids[i]};
    }
    if (!bucket.is_full) return {};
  }
}

// Stores the pair in its slot, or in the first free slot if the pair is new.
void PairTable::place(uint64_t key, Join join) {
  for (size_t at = index_of(key);; at = (at + 1) % num_buckets_) {
    Bucket& bucket = buckets()[at];
    for (size_t i = 0; i < kPairs; ++i) {
      if (bucket.pairs[i] != 0 && bucket.pairs[i] >> kRankBits != key) continue;
      num_pairs_ += bucket.pairs[i] == 0;
      bucket.pairs[i] = key << kRankBits | (kNone - join.rank);
      bucket.ids[i] = join.id;
      return;
    }
    bucket.is_full = 1;
  }
}

void PairTable::put(int32_t left, int32_t right, Join join) {
  if (num_pairs_ >= kMostPerBucket * num_buckets_) grow();
  place(pair_key(left, right), join);
}

void PairTable::add(int32_t left, int32_t right, Join join) {
  if (!find(left, right).exists()) put(left, right, join);
}

template <typename Visit>
void PairTable::visit_pairs(const Bucket* buckets, size_t count, const Visit& visit) {
  for (const Bucket* bucket = buckets; bucket != buckets + count; ++bucket) {
    for (size_t i = 0; i < kPairs; ++i) {
      const uint64_t pair = bucket->pairs[i];
      if (pair != 0) visit(pair >> kRankBits, Join{rank_of(pair), bucket->ids[i]});
    }
  }
}

void PairTable::grow() {
  const size_t count = std::exchange(num_buckets_, 2 * num_buckets_);
  const AnonymousMapping old =
      std::exchange(pages_, AnonymousMapping(num_buckets_ * sizeof(Bucket)));
  num_pairs_ = 0;
  visit_pairs(static_cast<const Bucket*>(old.data()), count,
              [&](uint64_t key, Join join) { place(key, join); });
}

void PairTable::make_square(int32_t first) {
  square_ = AnonymousMapping(kSide * kSide * sizeof(Near));
  first_ = static_cast<uint32_t>(first);
  side_ = kSide;
  visit_pairs(buckets(), num_buckets_, [&](uint64_t key, Join join) {
    constexpr uint64_t kMask = (uint64_t{1} << kIdBits) - 1;
    const uint32_t row = static_cast<uint32_t>(key >> kIdBits) - 1 - first_;
    const uint32_t column = static_cast<uint32_t>(key & kMask) - 1 - first_;
    if ((row | column) < kSide) square()[row * kSide + column] = {kNone - join.rank, join.id};
  });
}

}  // namespace fastsft
