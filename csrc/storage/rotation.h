#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "storage/file_system.h"
#include "storage/protection.h"

namespace fastsft {

struct CheckpointEntry {
  std::string name;  // "checkpoint-30"
  int64_t step = 0;
};

enum class Links { kLeftOut, kListed };

// The directories of `output_directory` called checkpoint-<step>, oldest step first. Links of that
// name, wherever they lead, only with kListed: for those who read, never for those who remove.
std::vector<CheckpointEntry> list_checkpoints(FileSystem& file_system,
                                              const std::string& output_directory,
                                              Links links = Links::kLeftOut);

// Which of `complete` (oldest first) to delete so that `limit` remain: the oldest, never the newest
// and none of `kept` (names: the best one, the one just written). A limit <= 0 keeps all; limit 1
// with another best keeps two (docs/spec/trainer_semantics.md, section 16.3).
std::vector<CheckpointEntry> plan_rotation(const std::vector<CheckpointEntry>& complete, int limit,
                                           const std::vector<std::string>& kept);

// Deletes by plan_rotation among the checkpoints whose manifest and file sizes verify; others are
// neither counted nor touched. Returns the names deleted, each with the path where files of others
// that lay in it are kept (delete_directory). One that cannot be deleted keeps its name, on top of
// the limit, and is named in `unremoved`; without that the first ends it (FileError).
std::map<std::string, std::string> rotate_checkpoints(FileSystem& file_system,
                                                      const std::string& output_directory,
                                                      int limit,
                                                      const std::vector<std::string>& kept,
                                                      Unremoved* unremoved = nullptr);

}  // namespace fastsft
