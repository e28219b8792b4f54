#include "storage/removal.h"

#include <array>
#include <ctime>
#include <set>
#include <stdexcept>

#include "core/error.h"
#include "storage/manifest.h"
#include "storage/posix_place.h"

namespace fastsft {
namespace {

bool is_mark(const std::string& name) { return name == kOwnerMark || name == kManifest; }

// Removes all entries of the directory; keeps owner mark and manifest unless `with_marks`.
void remove_entries(Directory& directory, bool with_marks) {
  for (const auto& entry : directory.list()) {
    if (!with_marks && is_mark(entry.name)) continue;
    if (entry.is_directory) {
      remove_entries(*directory.enter(entry.name), true);
      directory.remove_directory(entry.name);
    } else {
      directory.remove_file(entry.name);
    }
  }
}

// Paths of files below a directory, and of their folders.
struct Written {
  std::set<std::string> files, folders;

  void add(const std::string& name) {
    files.insert(name);
    for (size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
      folders.insert(name.substr(0, end));
    }
  }
};

// Removes the entries of `directory` that `written` lists, and adds the others to `left`. `prefix`:
// path of `directory` below the directory where the recursion began.
void remove_listed(Directory& directory, const std::string& prefix, const Written& written,
                   std::vector<std::string>& left) {
  for (const auto& entry : directory.list()) {
    const std::string name = prefix + entry.name;
    if (entry.is_directory && written.folders.contains(name)) {
      const size_t before = left.size();
      remove_listed(*directory.enter(entry.name), name + "/", written, left);
      if (left.size() == before) directory.remove_directory(entry.name);
    } else if (!entry.is_directory && written.files.contains(name)) {
      directory.remove_file(entry.name);
    } else {
      left.push_back(name);
    }
  }
}

}  // namespace

bool holds_manifest(FileSystem& file_system, const std::string& path) {
  if (path_kind(path) != PathKind::kDirectory || !file_system.exists(join_path(path, kManifest)) ||
      !is_plain_file(path, kManifest)) {
    return false;
  }
  try {
    read_manifest(path);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool is_unfinished(FileSystem& file_system, const std::string& path) {
  if (path_kind(path) != PathKind::kDirectory) return false;
  return is_plain_file(path, kOwnerMark) || holds_manifest(file_system, path) ||
         file_system.list(path).empty();
}

void remove_whole(FileSystem& file_system, const std::string& path) {
  {
    const auto directory = file_system.open_directory(path);
    remove_entries(*directory, false);
    remove_entries(*directory, true);
  }
  file_system.remove_directory(path);
}

std::string remove_written(FileSystem& file_system, const std::string& path,
                           const std::string& name) {
  auto directory = file_system.open_directory(path);
  if (holds_manifest(file_system, path)) {
    Written written;
    for (const auto& file : read_manifest(path).files) written.add(file.name);
    written.files.erase(kManifest);  // the manifest is needed until the other files are removed
    std::vector<std::string> left;
    remove_listed(*directory, "", written, left);
    if (left != std::vector<std::string>{kManifest}) {
      const std::string kept = put_aside(file_system, path, name);
      file_system.remove_file(join_path(kept, kManifest));
      return kept;
    }
    directory->remove_file(kManifest);
  }
  directory.reset();
  file_system.remove_directory(path);
  return "";
}

std::vector<std::string> remove_named(FileSystem& file_system, const std::string& path,
                                      const std::vector<std::string>& names) {
  Written written;
  for (const auto& name : names) written.add(name);
  std::vector<std::string> left;
  remove_listed(*file_system.open_directory(path), "", written, left);
  return left;
}

std::string put_aside(FileSystem& file_system, const std::string& path, const std::string& name) {
  const std::string target = previous_path(parent_path(path), name);
  file_system.rename(path, target);
  file_system.sync_directory(parent_path(path));
  return target;
}

std::string dated_path(const std::string& directory, const std::string& word,
                       const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  const std::string prefix = concat(word, "-", text.data());
  std::string path = join_path(directory, concat(prefix, "-", name));
  for (int number = 2; is_there(path); ++number) {
    path = join_path(directory, concat(prefix, "-", number, "-", name));
  }
  return path;
}

}  // namespace fastsft
