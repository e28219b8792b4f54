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

// One tensor of optimizer state of a unit. A rank holds the values of its elements, or all values.
struct StateSpec {
  std::string name;  // "exp_avg"; in checkpoints "<unit>.exp_avg"
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Elements with values, ascending: each `block` of them from a segment's begin on share one. What
  // a range of the unit holds are the values of all blocks that it has an element of.
  std::vector<ElementRange> segments = {};
  int64_t block = 1;
  std::optional<int64_t> whole = {};  // so many values, the same ones on every rank

  static StateSpec of_all_elements(std::string name, c10::ScalarType dtype) {
    return {std::move(name), dtype, {{0, std::numeric_limits<int64_t>::max()}}};
  }
  static StateSpec of_whole_unit(std::string name, int64_t count) {
    return {.name = std::move(name), .whole = count};
  }

  bool by_ranges() const { return !whole.has_value(); }
  int64_t itemsize() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
  // For sharded state: number of values of `range`, and number of values of `range` before those of
  // `part`, which lies in it.
  int64_t count(const ElementRange& range) const;
  int64_t offset(const ElementRange& range, const ElementRange& part) const;
  // Values of `range` in memory, and in a checkpoint, where the range from 0 on has the whole ones.
  int64_t held(const ElementRange& range) const { return by_ranges() ? count(range) : *whole; }
  int64_t stored(const ElementRange& range) const {
    return by_ranges() || range.begin == 0 ? held(range) : 0;
  }
};
// Every unit has the same names, dtypes and kinds, in the same order.
using StateSpecs = std::vector<StateSpec>;
using StateLayout = std::function<StateSpecs(const ParamUnit&, const StateOptions&)>;

// "exp_avg, exp_avg_sq", or "none".
std::string names_of(const StateSpecs& specs);

}  // namespace fastsft
