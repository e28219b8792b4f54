#include "storage/atomic_directory.h"

#include <regex>
#include <set>

#include "core/error.h"
#include "storage/checksummed_file.h"
#include "storage/posix_place.h"
#include "storage/removal.h"
#include "storage/staged_files.h"

namespace fastsft {
namespace {

// Gives the finished directory `path` the name `target`, which an older directory has. If the file
// system cannot exchange two names, the older directory is first renamed to `.fastsft-old-...`,
// from which `restore_replaced` can recover it. Returns the older directory's path.
std::string replace_directory(FileSystem& file_system, const std::string& path,
                              const std::string& target) {
  if (file_system.exchange(path, target)) return path;
  const std::string old = join_path(
      parent_path(target), ".fastsft-old-" + last_component(target) + "-" + random_suffix());
  file_system.rename(target, old);
  file_system.sync_directory(parent_path(target));
  file_system.rename(path, target);
  return old;
}

// Syncs the folders of the manifest's files. The caller has synced the files only.
void sync_folders(FileSystem& file_system, const std::string& path, const Manifest& manifest) {
  std::set<std::string> folders;
  for (const auto& file : manifest.files) {
    for (std::string name = file.name; name.find('/') != std::string::npos;) {
      name = parent_path(name);
      folders.insert(name);
    }
  }
  for (const auto& folder : folders) file_system.sync_directory(join_path(path, folder));
}

}  // namespace

AtomicDirectory::AtomicDirectory(FileSystem& file_system, std::string parent,
                                 const std::string& label)
    : file_system_(file_system),
      parent_(std::move(parent)),
      path_(join_path(parent_, ".fastsft-tmp-" + label + "-" + random_suffix())) {
  file_system_.make_directory(path_);
  ChecksummedFile(file_system_, join_path(path_, kOwnerMark)).finish();
}

AtomicDirectory::~AtomicDirectory() { discard(); }

void AtomicDirectory::discard() noexcept {
  if (committed_) return;
  try {
    if (file_system_.exists(path_)) remove_whole(file_system_, path_);
  } catch (const std::exception&) {
    // `remove_leftovers` will remove the directory. The caller reports the failure that came first.
  }
}

std::string AtomicDirectory::commit(const std::string& name, const Manifest& manifest) {
  const std::string target = join_path(parent_, name);
  sync_folders(file_system_, path_, manifest);
  write_file(file_system_, join_path(path_, kManifest), manifest_json(manifest));
  // a directory with neither mark nor manifest would never be cleaned up
  file_system_.sync_directory(path_);
  file_system_.remove_file(join_path(path_, kOwnerMark));
  file_system_.sync_directory(path_);
  if (file_system_.exists(target) && !holds_manifest(file_system_, target)) {
    kept_ = put_aside(file_system_, target, name);
  }
  std::string old;
  if (file_system_.exists(target)) {
    old = replace_directory(file_system_, path_, target);
  } else {
    file_system_.rename(path_, target);
  }
  committed_ = true;
  file_system_.sync_directory(parent_);
  if (!old.empty()) remove_old(old, name);
  return target;
}

// Deletes the replaced directory. If that fails, renames it to `previous-<time>-<name>` instead of
// throwing, because the new directory is already in place.
void AtomicDirectory::remove_old(const std::string& old, const std::string& name) {
  try {
    kept_ = delete_directory(file_system_, old, name);
  } catch (const FileError&) {
    Unremoved unremoved;
    or_unremoved(&unremoved, [&] { kept_ = put_aside(file_system_, old, name); });
  }
}

std::string delete_directory(FileSystem& file_system, const std::string& path,
                             const std::string& name) {
  require(holds_manifest(file_system, path), path,
          ": expected a directory with a manifest of fastsft, and no link to one; it is left as it "
          "is");
  if (const std::string why = protection_inside(path); !why.empty()) {
    throw FileError(concat(path, " is not removed: ", why));
  }
  const std::string own = name.empty() ? last_component(path) : name;
  const std::string trash =
      join_path(parent_path(path), concat(".fastsft-trash-", own, "-", random_suffix()));
  file_system.rename(path, trash);
  file_system.sync_directory(parent_path(path));
  try {
    return remove_written(file_system, trash, own);
  } catch (const FileError&) {
    if (verify_directory(trash, VerifyDepth::kSizes).empty()) file_system.rename(trash, path);
    throw;
  }
}

void restore_replaced(FileSystem& file_system, const std::string& parent, Unremoved* unremoved) {
  static const std::regex pattern("\\.fastsft-old-([^/]+)-[0-9a-f]{16}");
  std::smatch match;
  for (const auto& entry : file_system.list(parent)) {
    const std::string path = join_path(parent, entry.name);
    if (!entry.is_directory || !std::regex_match(entry.name, match, pattern) ||
        !holds_manifest(file_system, path)) {
      continue;
    }
    const std::string name = match[1], target = join_path(parent, name);
    or_unremoved(unremoved, [&] {
      if (!file_system.exists(target)) {
        file_system.rename(path, target);
        file_system.sync_directory(parent);
      } else {
        delete_directory(file_system, path, name);
      }
    });
  }
}

// Removes an entry that a crash left. Returns false, without a change, if fastsft did not make the
// directory.
bool remove_leftover(FileSystem& file_system, const std::string& path, bool is_directory,
                     const std::string& name) {
  if (!is_directory) {
    file_system.remove_file(path);
  } else if (!is_unfinished(file_system, path)) {
    return false;
  } else if (is_plain_file(path, kOwnerMark)) {  // the directory was never committed
    remove_whole(file_system, path);
  } else {
    // A directory with a manifest only may be a checkpoint that was replaced by its successor. It
    // may hold files that fastsft did not write.
    remove_written(file_system, path, name);
  }
  return true;
}

std::vector<std::string> remove_leftovers(FileSystem& file_system, const std::string& parent,
                                          Unremoved* unremoved) {
  restore_replaced(file_system, parent, unremoved);
  static const std::regex pattern("\\.fastsft-(tmp|trash)-(.+)-[0-9a-f]{16}");
  std::smatch match;
  std::vector<std::string> removed;
  for (const auto& entry : file_system.list(parent)) {
    const std::string path = join_path(parent, entry.name);
    if (!std::regex_match(entry.name, match, pattern)) continue;
    or_unremoved(unremoved, [&] {
      if (remove_leftover(file_system, path, entry.is_directory, match[2])) {
        removed.push_back(entry.name);
      }
    });
  }
  return removed;
}

}  // namespace fastsft
