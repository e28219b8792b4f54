#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/anonymous_mapping.h"

namespace fastsft {

// A table with all token pairs that merge, their ranks and their results. A cache line holds five
// pairs, which are compared at once without branches. Pairs from a range of 256 common ids, such as
// the single bytes, are also stored in a square array.
class PairTable {
 public:
  static constexpr uint32_t kNone = (1u << 22) - 1;
  static constexpr int32_t kMaxIds = (1 << 21) - 1;
  static constexpr int32_t kNothing = -1;  // an id that never merges
  // A pair's merge: the result `id` and the rank. Lower ranks merge first.
  struct Join {
    uint32_t rank = kNone;
    int32_t id = 0;
    bool exists() const { return rank != kNone; }
  };

  // Reserves room for `num_pairs`. The table grows when needed.
  explicit PairTable(size_t num_pairs = 0);

  // Store a pair. `rank` must be below kNone and ids below kMaxIds. If the table already has the
  // pair, `put` replaces it and `add` keeps it.
  void put(int32_t left, int32_t right, Join join);
  void add(int32_t left, int32_t right, Join join);
  // Stores the pairs with ids from `first` to `first` + 255 in the square array for `find_near`.
  void make_square(int32_t first);

  Join find(int32_t left, int32_t right) const {
    const uint64_t key = pair_key(left, right);
    const Bucket& bucket = buckets()[index_of(key)];
    uint64_t found = 0;
    uint32_t id = 0;
    for (size_t i = 0; i < kPairs; ++i) {
      const uint64_t is_here = -static_cast<uint64_t>(bucket.pairs[i] >> kRankBits == key);
      found |= bucket.pairs[i] & is_here;
      id |= static_cast<uint32_t>(bucket.ids[i]) & static_cast<uint32_t>(is_here);
    }
    if (bucket.is_full & (found == 0)) [[unlikely]]
      return find_further(key);
    return {rank_of(found), static_cast<int32_t>(id)};
  }
  // Returns the same as `find`, faster if both ids are in the square array.
  Join find_near(int32_t left, int32_t right) const {
    const uint32_t row = static_cast<uint32_t>(left) - first_;
    const uint32_t column = static_cast<uint32_t>(right) - first_;
    if ((row | column) >= side_) return find(left, right);
    const Near& near = square()[row * kSide + column];
    return {kNone - near.inverted, near.id};
  }

 private:
  static constexpr int kRankBits = 22;
  static constexpr int kIdBits = 21;
  static constexpr size_t kPairs = 5;
  static constexpr uint32_t kSide = 256;
  // All-zero slots are empty, because new memory pages are zero. So ranks are stored as kNone -
  // rank, and ids in keys as id + 1.
  struct alignas(64) Bucket {
    std::array<uint64_t, kPairs> pairs;  // the pair's key, then the inverted rank
    std::array<int32_t, kPairs> ids;
    uint32_t is_full;  // a pair that belongs here may be in the next bucket
  };
  struct Near {
    uint32_t inverted;
    int32_t id;
  };

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left + 1)) << kIdBits |
           static_cast<uint32_t>(right + 1);
  }
  static uint32_t rank_of(uint64_t pair) { return kNone - (static_cast<uint32_t>(pair) & kNone); }

  Bucket* buckets() const { return static_cast<Bucket*>(pages_.data()); }
  Near* square() const { return static_cast<Near*>(square_.data()); }
  size_t index_of(uint64_t key) const {
    const uint64_t hash = (key ^ key >> kIdBits) * 0x9E3779B97F4A7C15ull;
    return ((hash ^ hash << 32) >> 32) * num_buckets_ >> 32;
  }
  Join find_further(uint64_t key) const;
  void place(uint64_t key, Join join);
  void grow();
  template <typename Visit>
  static void visit_pairs(const Bucket* buckets, size_t count, const Visit& visit);

  size_t num_buckets_;  // below 2^32
  size_t num_pairs_ = 0;
  AnonymousMapping pages_;
  AnonymousMapping square_{0};
  uint32_t first_ = 0;
  uint32_t side_ = 0;  // kSide if `square_` is in use, else 0
};

}  // namespace fastsft
