#include "storage/file_set.h"

#include <algorithm>
#include <regex>

#include "core/error.h"
#include "storage/atomic_directory.h"
#include "storage/model_index.h"
#include "storage/staged_files.h"

namespace fastsft {
namespace {

constexpr const char* kPrefix = ".fastsft-new-";

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

// Renames those of `names` that have not been renamed before.
void move_files(FileSystem& file_system, const std::string& from, const std::string& to,
                const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const std::string path = join_path(from, name);
    if (file_system.exists(path)) file_system.rename(path, join_path(to, name));
  }
  file_system.sync_directory(to);
}

// One file takes the place of another in a single step, and what else loaders read with it is the
// same: the old model stays until then.
bool is_swap(FileSystem& file_system, const std::string& parent, const std::string& set) {
  const auto config = [](const std::string& folder) { return join_path(folder, "config.json"); };
  return file_system.exists(join_path(set, kSingleWeights)) &&
         !file_system.exists(join_path(parent, kWeightsIndex)) && file_system.exists(config(set)) &&
         file_system.exists(config(parent)) &&
         digest_file(config(set)) == digest_file(config(parent));
}

// Files that were moved already are looked for where they went.
bool is_complete(const std::string& parent, const std::string& set, const Manifest& manifest) {
  return std::all_of(manifest.files.begin(), manifest.files.end(), [&](const FileDigest& file) {
    const std::string staged = join_path(set, file.name), moved = join_path(parent, file.name);
    const bool waits = posix_file_system().exists(staged);
    if (!waits && !posix_file_system().exists(moved)) return false;
    return digest_file(waits ? staged : moved) == file;
  });
}

}  // namespace

std::string file_set_name() { return kPrefix + random_suffix(); }

void install_file_set(FileSystem& file_system, const std::string& parent, const std::string& name) {
  const std::string set = join_path(parent, name);
  std::vector<std::string> names = names_of(read_manifest(set));
  const auto entries = std::stable_partition(names.begin(), names.end(),
                                             [](const auto& file) { return !is_entry(file); });
  const std::vector<std::string> last(entries, names.end());
  const auto waits = [&](const auto& file) { return file_system.exists(join_path(set, file)); };
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
  delete_directory(file_system, set);
}

void finish_file_sets(FileSystem& file_system, const std::string& parent) {
  static const std::regex pattern("\\.fastsft-new-[0-9a-f]{16}");
  for (const auto& entry : file_system.list(parent)) {
    if (!entry.is_directory || !std::regex_match(entry.name, pattern)) continue;
    const std::string set = join_path(parent, entry.name);
    try {
      if (!is_complete(parent, set, read_manifest(set))) continue;
    } catch (const std::invalid_argument&) {
      continue;
    }
    install_file_set(file_system, parent, entry.name);
  }
}

}  // namespace fastsft
