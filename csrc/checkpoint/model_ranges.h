#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_file_plan.h"
#include "checkpoint/state_file.h"
#include "storage/file_ranges.h"
#include "storage/safetensors_reader.h"

namespace fastsft {

// All ranks write a model's files together, without a collective: each the bytes of its part at
// their places, rank 0 also the headers and the index. `directory` is new and seen by all of them.

// Writes this rank's bytes, durable on return. Values that the dtype cannot hold are
// std::invalid_argument naming the tensor.
std::vector<RangeDigest> write_model_ranges(FileSystem& file_system, const std::string& directory,
                                            const ModelFilePlan& plan, const StatePart& part);

// Reads this rank's bytes back and compares them with its part, which must not have changed since;
// rank 0 also parses every file and compares names, dtypes and shapes. std::runtime_error names the
// file and what differs.
void check_model_ranges(const std::string& directory, const ModelFilePlan& plan,
                        const StatePart& part);

// std::runtime_error unless the file holds the planned names, dtypes and shapes and no others.
void check_header(const SafetensorsReader& reader, const PlannedFile& file);

}  // namespace fastsft
