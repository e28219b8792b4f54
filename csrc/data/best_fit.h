#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// Items in bins: those of bin b are items[offsets[b]] up to items[offsets[b + 1]].
struct Packing {
  std::vector<int32_t> items;
  std::vector<int64_t> offsets{0};

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  std::span<const int32_t> bin(int64_t b) const {
    return std::span(items).subspan(static_cast<size_t>(offsets[b]),
                                    static_cast<size_t>(offsets[b + 1] - offsets[b]));
  }
};

// Best fit decreasing: the longest item first, each into the fullest bin that has room. Every item
// is in one bin; bins hold at most `capacity`, and an item longer than that has one to itself. Time
// is linear. Fewer than 2^31 items. Throws std::invalid_argument for a negative length or a
// capacity below 1.
Packing pack_best_fit(std::span<const int64_t> lengths, int64_t capacity);

// Items in order of falling length, equal ones in their order; lengths above `largest` come first.
std::vector<int32_t> longest_first(std::span<const int64_t> lengths, int64_t largest);

}  // namespace fastsft
