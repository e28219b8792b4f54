#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/file_system.h"
#include "storage/protection.h"

namespace fastsft {

struct CheckpointEntry {
  std::string name;  // for example "checkpoint-30"
  int64_t step = 0;
};

enum class Links { kLeftOut, kListed };

// Lists the directories of `output_directory` called checkpoint-<step>, oldest step first. kListed
// includes links with such a name; use it for reading only, never for removal.
std::vector<CheckpointEntry> list_checkpoints(FileSystem& file_system,
                                              const std::string& output_directory,
                                              Links links = Links::kLeftOut);

// Returns the checkpoints of `complete` (oldest first) to delete so that `limit` remain: the
// oldest, but never the newest or a name in `kept` (the best checkpoint, the one just written). A
// limit <= 0 keeps all. A limit of 1 keeps two if the best checkpoint is not the newest
// (docs/spec/trainer_semantics.md, section 16.3).
std::vector<CheckpointEntry> plan_rotation(const std::vector<CheckpointEntry>& complete, int limit,
                                           const std::vector<std::string>& kept);

// Deletes checkpoints as `plan_rotation` chooses. Only checkpoints whose manifest and file sizes
// verify are counted or deleted. Maps each deleted name to the path where `delete_directory` kept
// files that fastsft did not write. A checkpoint that cannot be deleted keeps its name, and the
// error is added to `unremoved`; if that is null, FileError is thrown at the first failure.
std::map<std::string, std::string> rotate_checkpoints(FileSystem& file_system,
                                                      const std::string& output_directory,
                                                      int limit,
                                                      const std::vector<std::string>& kept,
                                                      Unremoved* unremoved = nullptr);

}  // namespace fastsft
