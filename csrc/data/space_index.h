#pragma once

#include <cstdint>
#include <vector>

namespace fastsft {

// A set of whole numbers in [0, largest]; every call touches one word for each factor 64 of the
// range.
class SpaceIndex {
 public:
  explicit SpaceIndex(int64_t largest);

  void insert(int64_t value);
  void erase(int64_t value);
  // The smallest member that is at least `value`, or -1. `value` may be past `largest`.
  int64_t at_least(int64_t value) const;

 private:
  std::vector<std::vector<uint64_t>> levels_;  // bit i of a level: word i below it is not empty
};

}  // namespace fastsft
