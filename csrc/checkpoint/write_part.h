#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_file_plan.h"
#include "checkpoint/state_part.h"
#include "storage/file_ranges.h"

namespace fastsft {

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
