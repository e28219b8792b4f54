#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "shard/param_unit.h"
#include "shard/state_options.h"

namespace fastsft {

// One tensor of a unit's optimizer state. It is sharded with the unit's elements, or whole on every
// rank.
struct StateSpec {
  std::string name;  // for example "exp_avg"; in checkpoints "<unit>.exp_avg"
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Element ranges that have values, ascending. From a segment's begin on, every `block` elements
  // share a value. A unit's range holds the values of all blocks that overlap it.
  std::vector<ElementRange> segments = {};
  int64_t block = 1;
  std::optional<int64_t> whole = {};  // value count, equal on all ranks; none: sharded

  static StateSpec of_all_elements(std::string name, c10::ScalarType dtype) {
    return {std::move(name), dtype, {{0, std::numeric_limits<int64_t>::max()}}};
  }
  static StateSpec of_whole_unit(std::string name, int64_t count) {
    return {.name = std::move(name), .whole = count};
  }

  bool by_ranges() const { return !whole.has_value(); }
  int64_t itemsize() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
  // For sharded state. `count` returns the value count in `range`. `offset` returns how many
  // values in `range` precede `part`, a subrange.
  int64_t count(const ElementRange& range) const;
  int64_t offset(const ElementRange& range, const ElementRange& part) const;
  // `held` counts the values in memory. `stored` counts the values in a checkpoint, where only the
  // range that begins at 0 stores whole values.
  int64_t held(const ElementRange& range) const { return by_ranges() ? count(range) : *whole; }
  int64_t stored(const ElementRange& range) const {
    return by_ranges() || range.begin == 0 ? held(range) : 0;
  }
};
// The state of a unit. All units have the same names, dtypes and kinds, in the same order.
using StateSpecs = std::vector<StateSpec>;
using StateLayout = std::function<StateSpecs(const ParamUnit&, const StateOptions&)>;

// Returns the names as text: "exp_avg, exp_avg_sq", or "none".
std::string names_of(const StateSpecs& specs);

}  // namespace fastsft
