#pragma once

#include <cstdint>
#include <optional>
#include <span>

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

// An item of a data set as transformers' models read it, padding included.
struct Item {
  std::span<const int64_t> ids;     // [length]
  std::span<const int64_t> labels;  // [length], not shifted; kIgnoredLabel: not learned
  std::optional<std::span<const int64_t>> positions;  // [length]
  // Not 0: a key for the tokens from there on. What is missing at its end is masked; what is too
  // much there is not read.
  std::optional<std::span<const uint8_t>> mask;
  bool has_mask = false;  // also where a collator adds one of ones
};

// What a row needs that not every implementation of attention computes alike.
struct RowNeeds {
  bool masked_query = false;  // the output of a masked token
  bool blind_query = false;   // output for a query whose keys are all masked
  bool packing = false;       // attention inside the sequences that its positions tell apart
};

// Appends `item` as a row: without the masked tokens at either end whose output nothing needs, and
// with what is general about it, if anything is. std::invalid_argument, which names `row`, for ids
// and labels below 0, and for positions outside [0, kMostPositions).
RowNeeds append_item(TokenDataset& dataset, const Item& item, int64_t row);

}  // namespace fastsft
