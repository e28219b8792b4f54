#pragma once

#include <string>
#include <vector>

#include "checkpoint/gather.h"
#include "checkpoint/model_file_plan.h"
#include "checkpoint/state_file.h"
#include "shard/strategy.h"
#include "storage/file_ranges.h"

namespace fastsft {

// The ranks that write gathered tensors: rank 0, or, with `everywhere`, every rank with `here`.
struct Writers {
  bool everywhere = false;
  bool here = false;

  bool writes(const Communicator& all) const { return everywhere ? here : all.rank() == 0; }
  Readers readers() const { return everywhere ? Readers::kAll : Readers::kFirst; }
  // True if this rank's replica takes part in gathering.
  bool gathers(const Strategy& strategy) const {
    return everywhere || strategy.replica_index() == 0;
  }
};

// Saves the master weights as a Hugging Face model in an existing directory, streaming unit by unit
// to the writers. Collective over `all`. If a writer fails, all ranks throw and the directory keeps
// its old files. Returns the files' digests on the writers, an empty list on other ranks.
std::vector<FileDigest> save_model(Strategy& strategy, Communicator& all,
                                   const std::string& directory, const SaveOptions& options,
                                   const Writers& writers = {});

// Digests for the data that a rank wrote to a checkpoint.
struct WrittenPart {
  std::vector<FileDigest> files;  // files that only this rank wrote
  // this rank's ranges in the model's files, which all ranks write
  std::vector<RangeDigest> ranges;
};

enum class Priority { kNormal, kLow };

// Writes this rank's ranges of the planned model files and, with `with_state`, its training state
// to `directory`, in two threads. Durable on return. Calls no collectives and no Python, and no
// ATen operators if `part` is in host memory. With kLow the threads run at low priority, so that
// training keeps the cores.
WrittenPart write_part(FileSystem& file_system, const std::string& directory, const StatePart& part,
                       const ModelFilePlan& plan, bool with_state, Priority priority);

}  // namespace fastsft
