#pragma once

#include "data/host_batch.h"

namespace fastsft {

// Returns the batch with its conversations in descending order of length; equally long ones keep
// their order. Each conversation keeps its tokens, positions, keys, labels and weights.
HostBatch longest_first(const HostBatch& batch);

}  // namespace fastsft
