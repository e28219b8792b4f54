#pragma once

#include <cstdint>

#include "data/token_dataset.h"

namespace fastsft {

// How many rows of `rows` from which something is learned are rows of `others`, too: the same ids,
// learned alike.
int64_t count_shared_rows(const TokenDataset& rows, const TokenDataset& others);

}  // namespace fastsft
