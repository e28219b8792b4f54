#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/token_dataset.h"

namespace fastsft {

// Destination of FastChat's tensors, each [rows, width].
struct PaddedRows {
  int64_t* ids;     // padded on the right with the pad id
  int64_t* labels;  // kIgnoredLabel at positions that are not learned
  bool* mask;       // by MaskRule
};

// Rule for the attention mask. kNotPad: covers ids other than the pad id, as in FastChat. kLength:
// covers the row's tokens, whatever their ids. Tokens that are no keys are masked by both.
enum class MaskRule { kNotPad, kLength };

// Writes rows [begin, end) in parallel. No row may be longer than `width`.
void fill_padded_rows(const TokenDataset& dataset, int64_t begin, int64_t end, int64_t width,
                      int32_t pad_id, MaskRule mask_rule, const PaddedRows& to);

// A data set item as transformers' models read it, padding included.
struct Item {
  std::span<const int64_t> ids;     // [length]
  std::span<const int64_t> labels;  // [length], not shifted; kIgnoredLabel if not learned
  std::optional<std::span<const int64_t>> positions;  // [length]
  // Attention mask: a token and later tokens attend to the token if its entry is not 0. Tokens
  // beyond the mask's end are masked; surplus entries are ignored.
  std::optional<std::span<const uint8_t>> mask;
  bool has_mask = false;  // true also if a collator adds an all-ones mask
};

// Features that a row needs from attention and that not every implementation computes alike.
struct RowNeeds {
  bool masked_query = false;  // the output for a masked token
  bool blind_query = false;   // output for a query whose keys are all masked
  bool packing = false;       // attention within packed sequences, which the positions separate
};

// Appends `item` as a row. Masked tokens at both ends are removed if no target needs their output;
// positions, labels or mask are stored only if they differ from a plain row. Throws
// std::invalid_argument, with the number `row`, for negative ids or labels and for positions
// outside [0, kMostPositions).
RowNeeds append_item(TokenDataset& dataset, const Item& item, int64_t row);

}  // namespace fastsft
