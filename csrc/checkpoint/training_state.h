#pragma once

#include <string>
#include <vector>

#include "checkpoint/save_model.h"
#include "checkpoint/state_file.h"
#include "shard/strategy.h"
#include "storage/checksummed_file.h"

namespace fastsft {

// The training state as safetensors files. File optimizer-rank-RRRRR-of-WWWWW holds, for every
// unit, the rank's elements of "<unit>.master" and of the optimizer state
// (shard/optimizer_state.h), such as AdamW's "<unit>.exp_avg" and "<unit>.exp_avg_sq". The metadata
// has the element range and the unit's layout hash. Master weights are F32 (split masters are
// joined), optimizer state has its own dtype. Values that belong to a whole unit are in the file
// with the unit's first elements.

// Writes this rank's file to an existing directory. Durable on return.
FileDigest save_training_state(FileSystem& file_system, const StatePart& part,
                               const std::string& directory);

// Writes a single file with the whole state, streamed unit by unit to the writers, for directories
// that only some ranks can see. Collective. Durable on return. Returns the digest on the writers,
// an empty list on other ranks. All ranks throw if one fails.
std::vector<FileDigest> stream_training_state(Strategy& strategy, Communicator& all,
                                              const std::string& directory, const Writers& writers);

// Loads the elements that this rank owns. Collective. The files may come from another number of
// ranks, another strategy and other dtypes; F32 moments are rounded to nearest if this run holds
// them in bfloat16. All ranks throw if one fails: std::invalid_argument if files are missing, or if
// layout or optimizer differ.
void load_training_state(Strategy& strategy, Communicator& all, const std::string& directory);

}  // namespace fastsft
