#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/token_dataset.h"

namespace fastsft {

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
  bool blind_query = false;   // the output of a token that sees no key
  bool packing = false;       // attention inside the sequences that its positions tell apart
};

// Appends `item` as a row: without the masked tokens at either end whose output nothing needs, and
// with what is general about it, if anything is. std::invalid_argument, which names `row`, for ids
// and labels below 0, and for positions outside [0, kMostPositions).
RowNeeds append_item(TokenDataset& dataset, const Item& item, int64_t row);

}  // namespace fastsft
