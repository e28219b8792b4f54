#pragma once

#include <string>

#include "storage/file_system.h"
#include "storage/manifest.h"
#include "storage/protection.h"

namespace fastsft {

// A directory that appears whole or not at all (docs/spec/reliability.md, section 2). Its files are
// written to `<parent>/.fastsft-tmp-<label>-<random>`; the caller must sync every file before
// `commit`.
class AtomicDirectory {
 public:
  AtomicDirectory(FileSystem& file_system, std::string parent, const std::string& label);
  ~AtomicDirectory();  // calls `discard`
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Writes the manifest, syncs the folders, renames the directory to `<parent>/<name>` and syncs
  // the parent. If a directory with fastsft's manifest has that name, the two exchange names, and
  // the old directory is deleted only after the new directory is durable. So at any time one of
  // them has the name, or `restore_replaced` can give the name back. Anything else with that name
  // (a link, another program's files) is first renamed to `previous-<time>`. The old directory's
  // files that fastsft did not write are kept in the same way (removal.h). Returns the new path.
  std::string commit(const std::string& name, const Manifest& manifest);
  // Path to which `commit` renamed the entries that it could not replace or delete; "" if there
  // were none.
  const std::string& kept() const { return kept_; }
  // Removes the directory unless it was committed. Ignores failures.
  void discard() noexcept;

 private:
  void remove_old(const std::string& old, const std::string& name);

  FileSystem& file_system_;
  std::string parent_;
  std::string path_;
  std::string kept_;
  bool committed_ = false;
};

// Deletes the directory `path`, which must hold fastsft's manifest. Renames it to
// `.fastsft-trash-<name>-<random>` first, so that the name is free at once, then removes the files
// of the manifest. Files that fastsft did not write are kept in `previous-<time>-<name>` (`name` is
// by default the last component of `path`). Returns the path of the kept files, or "" if there are
// none. Throws std::invalid_argument if `path` holds no manifest of fastsft. Throws FileError, and
// the directory keeps its name, if something in it is protected (protection.h) or nothing in it
// could be removed.
std::string delete_directory(FileSystem& file_system, const std::string& path,
                             const std::string& name = "");

// Finishes a replacement that a crash interrupted. On file systems that cannot exchange two names,
// `commit` renames the old directory before the new directory gets its name. Gives the old
// directory its name back if no other directory has that name; otherwise deletes it.
void restore_replaced(FileSystem& file_system, const std::string& parent,
                      Unremoved* unremoved = nullptr);

// Calls `restore_replaced`, then removes the entries of `parent` that a crash left: files and links
// with fastsft's temporary names, and directories with a temporary or trash name that hold
// fastsft's owner mark, a manifest, or nothing. Returns the removed names. A failed removal is
// added to `unremoved`, or throws FileError if `unremoved` is null. Call it only while no other run
// writes to `parent`.
std::vector<std::string> remove_leftovers(FileSystem& file_system, const std::string& parent,
                                          Unremoved* unremoved = nullptr);

}  // namespace fastsft
