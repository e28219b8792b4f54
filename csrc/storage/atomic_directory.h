#pragma once

#include <string>

#include "storage/file_system.h"
#include "storage/manifest.h"

namespace fastsft {

// A directory that appears whole or not at all (reliability.md, section 2). It is filled under
// `<parent>/.fastsft-tmp-<label>-<random>`; every file in it must be synced before `commit`.
class AtomicDirectory {
 public:
  AtomicDirectory(FileSystem& file_system, std::string parent, const std::string& label);
  ~AtomicDirectory();  // discards
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Folders of the files, manifest, sync, rename to `<parent>/<name>`, sync of the parent. A
  // directory of that name changes places with it and is deleted only after the new one is durable:
  // one of the two always has the name, or can be given it back by `restore_replaced`. Returns the
  // new path.
  std::string commit(const std::string& name, const Manifest& manifest);
  // Removes it now, unless it was committed; as far as that is possible.
  void discard() noexcept;

 private:
  FileSystem& file_system_;
  std::string parent_;
  std::string path_;
  bool committed_ = false;
};

// Renames to `.fastsft-trash-<name>-<random>`, so that it is gone at once, then removes it.
void delete_directory(FileSystem& file_system, const std::string& path);

// Where names cannot be exchanged, a crash inside `commit` leaves the old directory under another
// name: it gets its own back when nothing else has it.
void restore_replaced(FileSystem& file_system, const std::string& parent);

// After `restore_replaced`, removes what a crash left in `parent`: files with our temporary names,
// and directories with our temporary and trash names that hold our owner mark or a manifest, or
// nothing. Returns their names. Only while no other run writes there.
std::vector<std::string> remove_leftovers(FileSystem& file_system, const std::string& parent);

}  // namespace fastsft
