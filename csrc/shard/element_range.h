#pragma once

#include <algorithm>
#include <cstdint>

namespace fastsft {

// Elements [begin, end) of a unit's flat buffer.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return std::max<int64_t>(end - begin, 0); }
  ElementRange intersection(const ElementRange& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
};

}  // namespace fastsft
