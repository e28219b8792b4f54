#include "data/best_fit.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/error.h"

namespace fastsft {
namespace {

// A set of integers in [0, largest], as a bit tree with 64 children per node. A call touches one
// word per level.
class SpaceIndex {
 public:
  explicit SpaceIndex(int64_t largest);

  void insert(int64_t value);
  void erase(int64_t value);
  // Returns the smallest member that is at least `value`, or -1. `value` may exceed `largest`.
  int64_t at_least(int64_t value) const;

 private:
  // bit i of a level is set if word i of the level below is not 0
  std::vector<std::vector<uint64_t>> levels_;
};

SpaceIndex::SpaceIndex(int64_t largest) {
  int64_t bits = largest + 1;
  do {
    bits = (bits + 63) / 64;
    levels_.emplace_back(static_cast<size_t>(bits), 0);
  } while (bits > 1);
}

void SpaceIndex::insert(int64_t value) {
  for (auto& level : levels_) {
    uint64_t& word = level[static_cast<size_t>(value / 64)];
    const bool known = word != 0;
    word |= uint64_t{1} << (value % 64);
    if (known) return;
    value /= 64;
  }
}

void SpaceIndex::erase(int64_t value) {
  for (auto& level : levels_) {
    uint64_t& word = level[static_cast<size_t>(value / 64)];
    word &= ~(uint64_t{1} << (value % 64));
    if (word != 0) return;
    value /= 64;
  }
}

int64_t SpaceIndex::at_least(int64_t value) const {
  for (size_t up = 0; up < levels_.size(); ++up, value = value / 64 + 1) {
    const auto index = static_cast<size_t>(value / 64);
    if (index >= levels_[up].size()) return -1;
    const uint64_t rest = levels_[up][index] >> (value % 64);
    if (rest == 0) continue;
    value += std::countr_zero(rest);
    for (size_t down = up; down > 0; --down) {
      value = value * 64 + std::countr_zero(levels_[down - 1][static_cast<size_t>(value)]);
    }
    return value;
  }
  return -1;
}

constexpr int32_t kNone = -1;

// The open bins, indexed by their free space.
class OpenBins {
 public:
  explicit OpenBins(int64_t capacity)
      : spaces_(capacity), first_(static_cast<size_t>(capacity) + 1, kNone) {}

  int64_t tightest(int64_t length) const { return spaces_.at_least(length); }

  int32_t take(int64_t space) {
    int32_t& first = first_[static_cast<size_t>(space)];
    const int32_t bin = first;
    first = next_[static_cast<size_t>(bin)];
    if (first == kNone) spaces_.erase(space);
    return bin;
  }

  void put(int32_t bin, int64_t space) {
    if (static_cast<size_t>(bin) >= next_.size()) next_.resize(static_cast<size_t>(bin) + 1);
    int32_t& first = first_[static_cast<size_t>(space)];
    if (first == kNone) spaces_.insert(space);
    next_[static_cast<size_t>(bin)] = first;
    first = bin;
  }

 private:
  SpaceIndex spaces_;
  std::vector<int32_t> first_;  // first bin with this free space
  std::vector<int32_t> next_;   // next bin with the same free space
};

// The bin for every item, and the bin count.
struct Assignment {
  std::vector<int32_t> bin_of;
  int32_t count = 0;
};

Assignment assign(std::span<const int64_t> lengths, std::span<const int32_t> order,
                  int64_t capacity) {
  Assignment result{.bin_of = std::vector<int32_t>(lengths.size())};
  OpenBins open(capacity);
  for (const int32_t item : order) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    const int64_t space = length > capacity ? -1 : open.tightest(length);
    const int32_t bin = space < 0 ? result.count++ : open.take(space);
    result.bin_of[static_cast<size_t>(item)] = bin;
    const int64_t left = (space < 0 ? capacity : space) - length;
    if (left >= 0) open.put(bin, left);
  }
  return result;
}

}  // namespace

std::vector<int32_t> longest_first(std::span<const int64_t> lengths, int64_t largest) {
  std::vector<int64_t> begin(static_cast<size_t>(largest) + 3, 0);
  const auto key = [largest](int64_t length) {
    return static_cast<size_t>(largest + 1 - std::min(length, largest + 1));
  };
  for (const int64_t length : lengths) ++begin[key(length) + 1];
  for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<int32_t> order(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    order[static_cast<size_t>(begin[key(lengths[i])]++)] = static_cast<int32_t>(i);
  }
  const auto over = std::find_if(order.begin(), order.end(), [&](int32_t item) {
    return lengths[static_cast<size_t>(item)] <= largest;
  });
  std::stable_sort(order.begin(), over, [&](int32_t a, int32_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return order;
}

Packing pack_best_fit(std::span<const int64_t> lengths, int64_t capacity) {
  require(capacity > 0, "expected a capacity of at least 1 token, got ", capacity);
  require(lengths.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()),
          "expected fewer than 2^31 items, got ", lengths.size());
  int64_t longest = 0, total = 0;
  for (const int64_t length : lengths) {
    require(length >= 0, "expected lengths of at least 0, got ", length);
    longest = std::max(longest, length);
    total += length;
  }
  // No bin can need more than the sum of all lengths, so memory does not grow with `capacity`.
  const int64_t room = std::min(capacity, std::max<int64_t>(total, 1));
  const auto order = longest_first(lengths, std::min(longest, room));
  const Assignment assigned = assign(lengths, order, room);

  Packing packing;
  packing.offsets.assign(static_cast<size_t>(assigned.count) + 1, 0);
  for (const int32_t bin : assigned.bin_of) ++packing.offsets[static_cast<size_t>(bin) + 1];
  for (size_t i = 1; i < packing.offsets.size(); ++i) packing.offsets[i] += packing.offsets[i - 1];
  packing.items.resize(lengths.size());
  std::vector<int64_t> at(packing.offsets.begin(), packing.offsets.end() - 1);
  for (const int32_t item : order) {
    packing.items[static_cast<size_t>(
        at[static_cast<size_t>(assigned.bin_of[static_cast<size_t>(item)])]++)] = item;
  }
  return packing;
}

}  // namespace fastsft
