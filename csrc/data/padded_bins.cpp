#include "data/padded_bins.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {

Packing pack_padded(std::span<const int64_t> lengths, int64_t capacity) {
  require(capacity >= 1, "expected a capacity of at least 1, got ", capacity);
  Packing packing;
  for (const int64_t length : lengths) {
    require(length >= 0, "expected lengths of at least 0, got ", length);
  }
  const auto longest = std::ranges::max_element(lengths);
  packing.items =
      longest_first(lengths, longest == lengths.end() ? 1 : std::max<int64_t>(*longest, 1));
  int64_t width = 0, count = 0, end = 0;
  for (const int32_t item : packing.items) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    if (count > 0 && (count + 1) * width > capacity) {
      packing.offsets.push_back(end);
      count = 0;
    }
    if (count == 0) width = length;
    ++count;
    ++end;
  }
  if (count > 0) packing.offsets.push_back(end);
  return packing;
}

}  // namespace fastsft
