#pragma once

#include <string>
#include <vector>

#include "storage/file_system.h"

namespace fastsft {

// Replaces files of one directory: each is written under a temporary name and takes its own name at
// `commit`. Until then the directory is as it was; without a commit the temporary files are
// removed.
class StagedFiles {
 public:
  StagedFiles(FileSystem& file_system, std::string directory);
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  // Where to write the file that shall be called `name`. It must be synced before `commit`.
  std::string stage(const std::string& name);
  // Renames in the order of staging and syncs the directory.
  void commit();
  // Removes what is staged and not committed, as far as that is possible.
  void discard() noexcept;

 private:
  struct Staged {
    std::string name, path;  // the path under a random name, which no other one tells
  };

  FileSystem& file_system_;
  std::string directory_;
  std::vector<Staged> staged_;
};

// Writes one file so that its old or its new content is there, never a half.
void replace_file(FileSystem& file_system, const std::string& path, const std::string& content);

// 16 random hex digits.
std::string random_suffix();

}  // namespace fastsft
