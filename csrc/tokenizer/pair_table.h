#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "tokenizer/tokenizer_json.h"

namespace fastsft {

// Which two tokens join, in what order, and into what. A later entry for the same pair replaces an
// earlier one, as in `tokenizers`.
class PairTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Join {
    uint32_t rank = kNone;
    int32_t id = 0;
  };

  explicit PairTable(const std::vector<PieceMerge>& merges)
      : slots_(std::bit_ceil(merges.size() * 2 + 2)) {
    for (uint32_t rank = 0; rank < merges.size(); ++rank) {
      const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
      slots_[slot_of(key)] = {key, {rank, merges[rank].merged}};
    }
  }

  Join find(int32_t left, int32_t right) const {
    return slots_[slot_of(pair_key(left, right))].join;
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;  // no key: ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    Join join;
  };

  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    const uint64_t hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15ull;
    size_t slot = (hash ^ hash >> 32) & (slots_.size() - 1);
    while (slots_[slot].key != key && slots_[slot].key != kEmpty) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  std::vector<Slot> slots_;
};

}  // namespace fastsft
