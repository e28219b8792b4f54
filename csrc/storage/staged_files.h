#pragma once

#include <string>
#include <vector>

#include "storage/file_system.h"

namespace fastsft {

// Replaces files of one directory. Each file is written under a temporary name and gets its own
// name at `commit`. Until then the directory's old files stay as they are; without a commit the
// temporary files are removed.
class StagedFiles {
 public:
  StagedFiles(FileSystem& file_system, std::string directory);
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  // Returns the path to which to write the new file `name`. The file must be synced before
  // `commit`.
  std::string stage(const std::string& name);
  // Renames the files in the order of their `stage` calls, then syncs the directory.
  void commit();
  // Removes the staged files that were not committed. Ignores failures.
  void discard() noexcept;

 private:
  struct Staged {
    std::string name, path;  // final name, and temporary path with a random suffix
  };

  FileSystem& file_system_;
  std::string directory_;
  std::vector<Staged> staged_;
};

// Replaces a file's content atomically: after a crash the file has its old or its new content,
// never a part.
void replace_file(FileSystem& file_system, const std::string& path, const std::string& content);

// Returns 16 random hexadecimal digits.
std::string random_suffix();

}  // namespace fastsft
