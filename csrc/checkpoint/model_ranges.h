#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_file_plan.h"
#include "checkpoint/state_file.h"
#include "storage/file_ranges.h"
#include "storage/safetensors_reader.h"

namespace fastsft {

// All ranks write a model's files together, without collectives. Each rank writes its part's bytes
// at their offsets; rank 0 also writes the headers and the index. `directory` must be new and
// visible to all ranks.

// Writes this rank's bytes, durable on return. Throws std::invalid_argument with the tensor's name
// if the dtype cannot hold a value.
std::vector<RangeDigest> write_model_ranges(FileSystem& file_system, const std::string& directory,
                                            const ModelFilePlan& plan, const StatePart& part);

// Reads this rank's bytes back and compares them with `part`, which must not have changed
// meanwhile, and checks the files' headers. Throws std::runtime_error with the file's name and the
// difference.
void check_model_ranges(const std::string& directory, const ModelFilePlan& plan,
                        const StatePart& part);

// Throws std::runtime_error unless the file holds exactly the planned names, dtypes and shapes.
void check_header(const SafetensorsReader& reader, const PlannedFile& file);

}  // namespace fastsft
