#pragma once

#include <string>
#include <vector>

#include "checkpoint/gather.h"
#include "checkpoint/model_file_plan.h"
#include "checkpoint/state_file.h"
#include "shard/strategy.h"
#include "storage/file_ranges.h"

namespace fastsft {

// Who writes what was gathered: rank 0, or where `everywhere`, all ranks with `here`.
struct Writers {
  bool everywhere = false;
  bool here = false;

  bool writes(const Communicator& all) const { return everywhere ? here : all.rank() == 0; }
  Readers readers() const { return everywhere ? Readers::kAll : Readers::kFirst; }
  // Whether the ranks of this copy of the state take part in gathering.
  bool gathers(const Strategy& strategy) const {
    return everywhere || strategy.replica_index() == 0;
  }
};

// Collective over `all` ranks: writes the master weights as a Hugging Face model's files into an
// existing directory, streaming unit by unit to the writers. When one of them fails all ranks throw
// and the directory keeps its old files. Returns the digests of the files on the writers, nothing
// elsewhere.
std::vector<FileDigest> save_model(Strategy& strategy, Communicator& all,
                                   const std::string& directory, const SaveOptions& options,
                                   const Writers& writers = {});

// What a rank wrote of a checkpoint.
struct WrittenPart {
  std::vector<FileDigest> files;    // its own
  std::vector<RangeDigest> ranges;  // of the model's files
};

enum class Priority { kNormal, kLow };

// Writes this rank's bytes of the planned model files and, where `with_state`, its training state
// into `directory`, in two threads; durable on return. No collectives, no Python, and for a part in
// host memory no ATen operators. With low priority the threads leave the cores to the training.
WrittenPart write_part(FileSystem& file_system, const std::string& directory, const StatePart& part,
                       const ModelFilePlan& plan, bool with_state, Priority priority);

}  // namespace fastsft
