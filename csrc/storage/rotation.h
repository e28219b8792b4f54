#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/file_system.h"

namespace fastsft {

struct CheckpointEntry {
  std::string name;  // "checkpoint-30"
  int64_t step = 0;
};

// The directories of `output_directory` called checkpoint-<step>, oldest step first.
std::vector<CheckpointEntry> list_checkpoints(FileSystem& file_system,
                                              const std::string& output_directory);

// Which of `complete` (oldest first) to delete so that `limit` remain: the oldest, never the newest
// and none of `kept` (names: the best one, the one just written). A limit <= 0 keeps all; limit 1
// with another best keeps two (trainer_semantics.md, section 16.3).
std::vector<CheckpointEntry> plan_rotation(const std::vector<CheckpointEntry>& complete, int limit,
                                           const std::vector<std::string>& kept);

// Deletes by plan_rotation among the checkpoints whose manifest and file sizes verify; others are
// neither counted nor touched. Returns the names deleted.
std::vector<std::string> rotate_checkpoints(FileSystem& file_system,
                                            const std::string& output_directory, int limit,
                                            const std::vector<std::string>& kept);

}  // namespace fastsft
