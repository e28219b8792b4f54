#pragma once

#include <string>

#include "storage/file_system.h"
#include "storage/manifest.h"
#include "storage/protection.h"

namespace fastsft {

// A directory that appears whole or not at all (docs/spec/reliability.md, section 2). It is filled
// under `<parent>/.fastsft-tmp-<label>-<random>`; every file in it must be synced before `commit`.
class AtomicDirectory {
 public:
  AtomicDirectory(FileSystem& file_system, std::string parent, const std::string& label);
  ~AtomicDirectory();  // discards
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Folders of the files, manifest, sync, rename to `<parent>/<name>`, sync of the parent. One of
  // ours of that name changes places with it and is deleted only after the new one is durable: one
  // of the two always has the name, or can be given it back by `restore_replaced`. What else has
  // the name (a link, what another program wrote) is put aside before, and of fastsft's what others
  // wrote there (removal.h). Returns the new path.
  std::string commit(const std::string& name, const Manifest& manifest);
  // What `commit` put aside, or could not remove: its new path, "" when nothing was.
  const std::string& kept() const { return kept_; }
  // Removes it now, unless it was committed; as far as that is possible.
  void discard() noexcept;

 private:
  void remove_old(const std::string& old, const std::string& name);

  FileSystem& file_system_;
  std::string parent_;
  std::string path_;
  std::string kept_;
  bool committed_ = false;
};

// Renames the directory `path`, which holds fastsft's manifest, to
// `.fastsft-trash-<name>-<random>`, so that it is gone at once, then removes what we wrote. What
// others wrote there is put aside under `name` (default: its own); returns its new path, "" when
// there was nothing. std::invalid_argument when it is not fastsft's. FileError, and it keeps its
// name, where something in it is protected (protection.h) or nothing of it could be removed.
std::string delete_directory(FileSystem& file_system, const std::string& path,
                             const std::string& name = "");

// Where names cannot be exchanged, a crash inside `commit` leaves the old directory under another
// name: it gets its own back when nothing else has it.
void restore_replaced(FileSystem& file_system, const std::string& parent,
                      Unremoved* unremoved = nullptr);

// After `restore_replaced`, removes what a crash left in `parent`: files and links with our
// temporary names, and directories with our temporary and trash names that hold our owner mark or a
// manifest, or nothing. Returns their names; what stays is named in `unremoved`, or ends it without
// that (FileError). Only while no other run writes there.
std::vector<std::string> remove_leftovers(FileSystem& file_system, const std::string& parent,
                                          Unremoved* unremoved = nullptr);

}  // namespace fastsft
