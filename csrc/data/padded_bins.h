#pragma once

#include <cstdint>
#include <span>

#include "data/best_fit.h"

namespace fastsft {

// Items in bins that are padded to their longest: the longest item first, each bin the next ones,
// as many as have room; number times longest is at most `capacity`, and an item longer than that
// has a bin to itself. The fewest bins that such padding allows, and items of like length together.
// Throws as pack_best_fit.
Packing pack_padded(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace fastsft
