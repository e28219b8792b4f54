#pragma once

#include <cstdint>

#include "data/token_dataset.h"

namespace fastsft {

inline constexpr int64_t kIgnoredLabel = -100;

// Rows [begin, end) as FastChat's tensors, [end - begin, width] each: ids filled up on the right
// with `pad_id`, labels with -100 where nothing is learned. No row may be longer than `width`.
void fill_padded_rows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t width,
                      int32_t pad_id, int64_t* ids, int64_t* labels);

}  // namespace fastsft
