#include "storage/file_set.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <regex>
#include <set>

#include "core/error.h"
#include "storage/atomic_directory.h"
#include "storage/byte_source.h"
#include "storage/model_index.h"
#include "storage/posix_place.h"
#include "storage/protection.h"
#include "storage/removal.h"
#include "storage/staged_files.h"

namespace fastsft {
namespace {

constexpr const char* kNewPrefix = ".fastsft-new-";
constexpr const char* kOurArguments = "training_args.json";
constexpr const char* kForeignArguments = "training_args.bin";
constexpr uint64_t kMaxArgumentBytes = uint64_t{1} << 20;

bool is_entry(const std::string& name) { return name == kSingleWeights || name == kWeightsIndex; }

std::vector<std::string> names_of(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& file : manifest.files) names.push_back(file.name);
  return names;
}

bool remove_if_there(FileSystem& file_system, const std::string& path) {
  if (!file_system.exists(path)) return false;
  file_system.remove_file(path);
  return true;
}

// Makes the parent folders of the file `name` in `directory`, durable on return.
// `put_foreign_aside` has already moved away entries with these names that are no folders.
void make_folders(FileSystem& file_system, const std::string& directory, const std::string& name) {
  for (size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string folder = join_path(directory, name.substr(0, end));
    if (path_kind(folder) == PathKind::kDirectory) continue;
    file_system.make_directory(folder);
    file_system.sync_directory(parent_path(folder));
  }
}

// Renames those files of `names` that are still in `from`.
void move_files(FileSystem& file_system, const std::string& from, const std::string& to,
                const std::vector<std::string>& names) {
  std::set<std::string> changed{to};
  for (const auto& name : names) {
    const std::string path = join_path(from, name), target = join_path(to, name);
    changed.insert(parent_path(target));  // also syncs files that were renamed before a crash
    if (!file_system.exists(path)) continue;
    make_folders(file_system, to, name);
    file_system.rename(path, target);
  }
  for (const auto& directory : changed) file_system.sync_directory(directory);
}

// Returns true if a single weight file replaces another next to an identical config.json. One
// rename is then enough, and the old model remains until that rename.
bool is_swap(FileSystem& file_system, const std::string& parent, const std::string& set) {
  const auto config = [](const std::string& folder) { return join_path(folder, "config.json"); };
  return file_system.exists(join_path(set, kSingleWeights)) &&
         !file_system.exists(join_path(parent, kWeightsIndex)) && file_system.exists(config(set)) &&
         file_system.exists(config(parent)) &&
         digest_file(config(set)) == digest_file(config(parent));
}

bool is_same(const std::string& path, const std::string& other) {
  FileDigest digest = digest_file(other);
  digest.name = last_component(path);
  return digest_file(path) == digest;
}

// Returns the path, below `parent`, of an entry that would be overwritten but must be kept; "" if
// there is none. The entry is the file `name` or one of its parent folders. A file that fastsft did
// not write may be replaced if the set's file has the same content.
std::string in_the_way(const std::string& parent, const std::string& set, const std::string& name,
                       bool ours) {
  for (size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    const PathKind kind = path_kind(join_path(parent, name.substr(0, end)));
    if (kind == PathKind::kNothing) return "";
    if (kind != PathKind::kDirectory) return name.substr(0, end);
  }
  const std::string path = join_path(parent, name), fresh = join_path(set, name);
  const PathKind kind = path_kind(path);
  if (kind == PathKind::kNothing || kind == PathKind::kLink) return "";
  if (kind != PathKind::kFile) return name;
  return ours || (is_there(fresh) && is_same(path, fresh)) ? "" : name;
}

// Moves entries that the set would overwrite or remove, and that fastsft did not write, to a
// separate folder. Next to the model they could be read by loaders that take all weight files of a
// directory. The files that loaders open first are moved first. Returns the folder, or "" if
// nothing was moved.
std::string put_foreign_aside(FileSystem& file_system, const std::string& parent,
                              const std::string& set, std::vector<std::string> names) {
  const bool ours = is_our_model(parent);
  std::stable_partition(names.begin(), names.end(), is_entry);
  std::string folder;
  for (const auto& name : names) {
    const std::string other = in_the_way(parent, set, name, ours);
    if (other.empty()) continue;
    if (folder.empty()) {
      folder = previous_path(parent, "files");
      file_system.make_directory(folder);
      file_system.sync_directory(parent);  // before the folder holds the only copy of a file
    }
    make_folders(file_system, folder, other);
    file_system.rename(join_path(parent, other), join_path(folder, other));
    file_system.sync_directory(parent_path(join_path(folder, other)));
    file_system.sync_directory(parent_path(join_path(parent, other)));
  }
  return folder;
}

bool is_as_listed(const std::string& path, const FileDigest& file) {
  FileDigest found = digest_file(path);
  found.name = file.name;
  return found == file;
}

// Returns why the set cannot be installed, or "". Files that were already moved are checked in
// `parent`.
std::string problem_of(const std::string& parent, const std::string& set) {
  try {
    for (const auto& file : read_manifest(set).files) {
      const std::string staged = join_path(set, file.name), moved = join_path(parent, file.name);
      if (is_there(staged)) {
        if (!is_plain_file(set, file.name)) return file.name + " is no file, or behind a link";
        if (!is_as_listed(staged, file)) return file.name + " is damaged";
      } else if (!is_there(moved)) {
        return file.name + " is missing";
      } else if (!is_plain_file(parent, file.name) || !is_as_listed(moved, file)) {
        return file.name + " was replaced meanwhile";
      }
    }
  } catch (const std::exception& error) {  // no manifest, or an unreadable file
    return error.what();
  }
  return "";
}

// Returns true if `folder` of the set holds nothing useful: all files are damaged or the manifest
// itself, and none is unlisted.
bool holds_nothing(const std::string& set, const std::string& folder, const Manifest& manifest) {
  const auto entries = posix_file_system().list(join_path(set, folder));
  return std::all_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
    const std::string name = folder.empty() ? entry.name : join_path(folder, entry.name);
    if (entry.is_directory) return holds_nothing(set, name, manifest);
    const auto file = std::find_if(manifest.files.begin(), manifest.files.end(),
                                   [&](const FileDigest& listed) { return listed.name == name; });
    if (file == manifest.files.end()) return name == kManifest;
    return is_plain_file(set, name) && !is_as_listed(join_path(set, name), *file);
  });
}

bool is_useless(const std::string& set) {
  try {
    if (posix_file_system().list(set).empty()) return true;
    return holds_nothing(set, "", read_manifest(set));
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

bool is_our_model(const std::string& directory) {
  const std::string path = join_path(directory, kOurArguments);
  if (!is_plain_file(directory, kOurArguments) ||
      is_there(join_path(directory, kForeignArguments))) {
    return false;
  }
  try {
    const FileBytes file(path);
    std::string text(std::min(file.size(), kMaxArgumentBytes), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(text)));
    return text.starts_with('{') && text.find("\"output_dir\"") != std::string::npos &&
           text.find("\"learning_rate\"") != std::string::npos;
  } catch (const std::exception&) {
    return false;
  }
}

std::string file_set_name() { return kNewPrefix + random_suffix(); }

std::string install_file_set(FileSystem& file_system, const std::string& parent,
                             const std::string& name) {
  const std::string set = join_path(parent, name);
  std::vector<std::string> names = names_of(read_manifest(set));
  const auto entries = std::stable_partition(names.begin(), names.end(),
                                             [](const auto& file) { return !is_entry(file); });
  const std::vector<std::string> last(entries, names.end());
  const auto waits = [&](const auto& file) { return file_system.exists(join_path(set, file)); };
  std::vector<std::string> replaced = stale_weight_files(file_system, parent, names);
  // an earlier call may have moved one of these files
  for (const char* entry : {kSingleWeights, kWeightsIndex}) {
    if (std::find(names.begin(), names.end(), entry) == names.end()) replaced.emplace_back(entry);
  }
  std::copy_if(names.begin(), names.end(), std::back_inserter(replaced), waits);
  const std::string kept = put_foreign_aside(file_system, parent, set, replaced);
  if (std::any_of(last.begin(), last.end(), waits) && !is_swap(file_system, parent, set)) {
    bool removed = remove_if_there(file_system, join_path(parent, kSingleWeights));
    removed = remove_if_there(file_system, join_path(parent, kWeightsIndex)) || removed;
    if (removed) file_system.sync_directory(parent);
  }
  move_files(file_system, set, parent, {names.begin(), entries});
  move_files(file_system, set, parent, last);
  for (const auto& stale : stale_weight_files(file_system, parent, names)) {
    file_system.remove_file(join_path(parent, stale));
  }
  // The model is installed. A failed deletion is ignored, because the next start removes the rest.
  Unremoved unremoved;
  or_unremoved(&unremoved, [&] { delete_directory(file_system, set); });
  return kept;
}

std::string file_set_obstacle(FileSystem& file_system, const std::string& parent,
                              const std::string& name) {
  const std::string set = join_path(parent, name);
  std::vector<std::string> names = names_of(read_manifest(set));
  for (const auto& stale : stale_weight_files(file_system, parent, names)) names.push_back(stale);
  names.insert(names.end(), {kSingleWeights, kWeightsIndex});
  for (const auto& file : names) {
    for (size_t end = file.find('/'); end != std::string::npos; end = file.find('/', end + 1)) {
      const std::string why = protection_of(join_path(parent, file.substr(0, end)));
      if (!why.empty()) return why;
    }
    const std::string why = protection_of(join_path(parent, file));
    if (!why.empty()) return why;
  }
  return "";
}

std::string keep_file_set(FileSystem& file_system, const std::string& parent,
                          const std::string& name) {
  const std::string target = dated_path(parent, "saved", "model");
  file_system.rename(join_path(parent, name), target);
  file_system.sync_directory(parent);
  return target;
}

namespace {

// Installs a set that a crash left. Returns the reason if it was not installed, nullopt otherwise.
std::optional<BrokenFileSet> finish_file_set(FileSystem& file_system, const std::string& parent,
                                             const std::string& name, bool remove_useless) {
  const std::string set = join_path(parent, name);
  const std::string problem = problem_of(parent, set);
  if (problem.empty()) {
    const std::string obstacle = file_set_obstacle(file_system, parent, name);
    if (obstacle.empty()) return install_file_set(file_system, parent, name), std::nullopt;
    const std::string kept = last_component(keep_file_set(file_system, parent, name));
    return BrokenFileSet{name, concat(obstacle, "; the model is in ", kept), false};
  }
  const bool removed = remove_useless && is_useless(set) && protection_inside(set).empty();
  if (removed) remove_whole(file_system, set);
  return BrokenFileSet{name, problem, removed};
}

}  // namespace

std::vector<BrokenFileSet> finish_file_sets(FileSystem& file_system, const std::string& parent,
                                            bool remove_useless) {
  static const std::regex pattern("\\.fastsft-new-[0-9a-f]{16}");
  std::vector<BrokenFileSet> broken;
  for (const auto& entry : file_system.list(parent)) {
    if (!entry.is_directory || !std::regex_match(entry.name, pattern)) continue;
    const auto found = finish_file_set(file_system, parent, entry.name, remove_useless);
    if (found) broken.push_back(*found);
  }
  return broken;
}

}  // namespace fastsft
