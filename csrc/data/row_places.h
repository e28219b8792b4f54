#pragma once

#include <cstdint>
#include <optional>

#include "data/token_dataset.h"

namespace fastsft {

// A row that a model does not take which counts positions itself: 0, 1, 2, ... from its first
// token.
struct MisplacedRow {
  int64_t row = 0;
  bool begins_masked = false;  // no token attends to its first one; else it has other positions
};

// The first such row of `dataset`; of those with a target where `targets_only`.
std::optional<MisplacedRow> first_misplaced(const TokenDataset& dataset, bool targets_only);

}  // namespace fastsft
