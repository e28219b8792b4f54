#pragma once

#include <span>
#include <string>
#include <vector>

#include "shard/strategy.h"
#include "shard/unit_state.h"
#include "storage/checksummed_file.h"

namespace fastsft {

// Master weights and AdamW's moments as safetensors by flat ranges: optimizer-rank-RRRRR-of-WWWWW
// holds, for every unit that a rank owns a part of, "<unit>.master", ".exp_avg" and ".exp_avg_sq";
// which elements they are and the hash of the unit's layout stand in the metadata. Masters are F32
// (split ones joined), moments F32 or BF16, as they were held.

// Writes this rank's file into an existing directory, durable on return; of several copies only the
// first is written, a strategy that replicates writes one file on rank 0. Returns the files
// written. No collectives.
std::vector<FileDigest> save_training_state(Strategy& strategy, const std::string& directory);

// Collective: reads this rank's elements from the files of any number of ranks, any strategy and
// other dtypes; F32 moments are rounded to nearest where bfloat16 ones are held.
// All ranks throw when one fails: std::invalid_argument when files are missing or the layout
// differs.
void load_training_state(Strategy& strategy, Communicator& all, const std::string& directory);

}  // namespace fastsft
