#include "data/space_index.h"

#include <bit>

namespace fastsft {

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

}  // namespace fastsft
