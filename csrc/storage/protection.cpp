#include "storage/protection.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "storage/file_system.h"
#include "storage/posix_place.h"

namespace fastsft {
namespace {

// Returns the file attributes that statx reports; 0 if the file system does not support the call.
uint64_t attributes_of(const std::string& path) {
  struct statx found {};
  const int flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
  if (::statx(AT_FDCWD, path.c_str(), flags, STATX_BASIC_STATS, &found) != 0) return 0;
  return found.stx_attributes;
}

// Returns true if the sticky bit of `folder` prevents this user from removing `entry`.
bool is_anothers(const struct stat& folder, const struct stat& entry) {
  const uid_t user = ::geteuid();
  return (folder.st_mode & S_ISVTX) != 0 && user != 0 && user != folder.st_uid &&
         user != entry.st_uid;
}

std::string folder_protection(const std::string& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0 && errno != ENOENT) {
    return concat(folder, ": this user may not change the folder (", std::strerror(errno), ")");
  }
  return "";
}

// Returns why `path` itself cannot be removed, without checking its folder's permissions; "" if it
// can.
std::string own_protection(const std::string& path, const struct stat& folder) {
  struct stat entry {};
  if (::lstat(path.c_str(), &entry) != 0) return "";
  const uint64_t attributes = attributes_of(path);
  if (attributes & STATX_ATTR_IMMUTABLE) return path + " is immutable (chattr -i frees it)";
  if (attributes & STATX_ATTR_APPEND) return path + " is append-only (chattr -a frees it)";
  if ((attributes & STATX_ATTR_MOUNT_ROOT) || entry.st_dev != folder.st_dev) {
    return path + " is a mount point";
  }
  return is_anothers(folder, entry) ? path + " belongs to another user" : "";
}

}  // namespace

std::string protection_of(const std::string& path) {
  const std::string parent = parent_path(path);
  struct stat folder {};
  if (!is_there(path) || ::stat(parent.c_str(), &folder) != 0) return "";
  const std::string why = folder_protection(parent);
  return why.empty() ? own_protection(path, folder) : why;
}

std::string protection_inside(const std::string& directory) {
  std::string why = protection_of(directory);
  if (why.empty()) why = folder_protection(directory);
  struct stat folder {};
  if (!why.empty() || ::lstat(directory.c_str(), &folder) != 0) return why;
  for (const auto& entry : posix_file_system().list(directory)) {
    const std::string path = join_path(directory, entry.name);
    why = entry.is_directory ? protection_inside(path) : own_protection(path, folder);
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace fastsft
