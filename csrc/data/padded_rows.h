#pragma once

#include <cstdint>

#include "data/token_dataset.h"

namespace fastsft {

// Where FastChat's tensors go: [rows, width] each.
struct PaddedRows {
  int64_t* ids;     // filled up on the right with the pad id
  int64_t* labels;  // kIgnoredLabel where nothing is learned
  bool* mask;       // ids != pad id, as FastChat has it, or where the row has a token
};

// What the mask is made from; a token that is no key is masked by both.
enum class MaskRule { kNotPad, kLength };

// Rows [begin, end) of the data set. No row may be longer than `width`. In parallel.
void fill_padded_rows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t width,
                      int32_t pad_id, MaskRule mask_rule, const PaddedRows& to);

}  // namespace fastsft
