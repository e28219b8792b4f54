#pragma once

#include <cstdint>
#include <vector>

namespace fastsft {

// The label of what is not learned.
inline constexpr int64_t kIgnoredLabel = -100;

// What ids and learned spans do not say of a row. An empty list says what every plain row does.
struct GeneralRow {
  std::vector<int32_t> labels;     // [length], not shifted, read where learned; empty: the ids
  std::vector<int32_t> positions;  // [length], of the rotary embedding; empty: 0, 1, 2, ...
  std::vector<uint8_t> is_key;     // [length], 0: no token attends to this one; empty: all are keys
  bool has_mask = false;           // it came with an attention mask
  int64_t leading = 0;             // masked tokens in front that were left away
};

// The greatest position is below this: the table of rotary angles has an entry for each.
inline constexpr int64_t kMostPositions = int64_t{1} << 20;

}  // namespace fastsft
