#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint/model_writer.h"
#include "shard/strategy.h"

namespace fastsft {

// Collective over `all` ranks: writes the master weights as a Hugging Face model's files into an
// existing directory, streaming unit by unit to rank 0 from the ranks of its copy. When it fails on
// rank 0 all ranks throw and the directory keeps its old files. Returns the digests of the files on
// rank 0, nothing elsewhere.
std::vector<FileDigest> save_model(Strategy& strategy, Communicator& all,
                                   const std::string& directory, const SaveOptions& options);

}  // namespace fastsft
