#pragma once

#include <string>
#include <vector>

#include "checkpoint/save_model.h"
#include "checkpoint/state_file.h"
#include "shard/strategy.h"
#include "storage/checksummed_file.h"

namespace fastsft {

// Master weights and optimizer state as safetensors by flat ranges: optimizer-rank-RRRRR-of-WWWWW
// holds, for every unit, "<unit>.master" and what the optimizer keeps (shard/optimizer_state.h), of
// AdamW ".exp_avg" and ".exp_avg_sq"; which elements they are and the hash of the unit's layout are
// in the metadata. Masters are F32 (split ones joined), state as it was held; values that belong to
// a whole unit are in the file of its first elements.

// Writes the file of this rank's part into an existing directory, durable on return.
FileDigest save_training_state(FileSystem& file_system, const StatePart& part,
                               const std::string& directory);

// Collective: one file with the whole state, streamed unit by unit to the writers, for directories
// that not all ranks see. Durable on return; the digest on the writers, nothing elsewhere. All
// ranks throw when one fails.
std::vector<FileDigest> stream_training_state(Strategy& strategy, Communicator& all,
                                              const std::string& directory, const Writers& writers);

// Collective: reads this rank's elements from the files of any number of ranks, any strategy and
// other dtypes; F32 moments are rounded to nearest where bfloat16 ones are held.
// All ranks throw when one fails: std::invalid_argument when files are missing or the layout
// differs, or the state is of another optimizer.
void load_training_state(Strategy& strategy, Communicator& all, const std::string& directory);

}  // namespace fastsft
