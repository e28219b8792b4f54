#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fastsft {

// Items packed into bins: bin b holds items[offsets[b]] to items[offsets[b + 1] - 1].
struct Packing {
  std::vector<int32_t> items;
  std::vector<int64_t> offsets{0};

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  std::span<const int32_t> bin(int64_t b) const {
    return std::span(items).subspan(static_cast<size_t>(offsets[b]),
                                    static_cast<size_t>(offsets[b + 1] - offsets[b]));
  }
};

// Packs items by best-fit decreasing: the longest item first, each into the fullest bin that has
// room. A bin holds at most `capacity`; a longer item gets its own bin. Takes linear time. Throws
// std::invalid_argument for a negative length, a capacity below 1, or 2^31 items and more.
Packing pack_best_fit(std::span<const int64_t> lengths, int64_t capacity);

// Returns the items ordered by falling length; equal lengths keep their order. Lengths above
// `largest` are allowed but take longer to sort.
std::vector<int32_t> longest_first(std::span<const int64_t> lengths, int64_t largest);

}  // namespace fastsft
