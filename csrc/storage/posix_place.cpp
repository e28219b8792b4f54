#include "storage/posix_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "storage/file_system.h"

namespace fastsft {
namespace {

constexpr std::string_view kOwnPrefix = ".fastsft-";

// Returns the position of the first folder in `path` whose name begins with `.fastsft-`; npos if
// there is none. The last component does not count.
size_t own_folder(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = path.find('/', begin);
    if (end == std::string::npos) return std::string::npos;
    if (path.compare(begin, kOwnPrefix.size(), kOwnPrefix) == 0) return begin;
    begin = end + 1;
  }
  return std::string::npos;
}

}  // namespace

PosixPlace::PosixPlace(const std::string& path) : directory_(AT_FDCWD), name_(path) {
  size_t begin = own_folder(path);
  if (begin == std::string::npos) return;
  if (begin > 0) {
    const std::string before = path.substr(0, begin);
    directory_ = ::open(before.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    is_open_ = directory_ >= 0;
  }
  for (size_t end; is_open_ && (end = path.find('/', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string folder = path.substr(begin, end - begin);
    const int next =
        ::openat(directory_, folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    if (directory_ >= 0) ::close(directory_);
    errno = error;
    directory_ = next;
    is_open_ = next >= 0;
  }
  name_ = path.substr(begin);
}

PosixPlace::~PosixPlace() {
  const int error = errno;  // keeps the errno of the caller's last system call
  if (directory_ >= 0) ::close(directory_);
  errno = error;
}

PathKind path_kind(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return PathKind::kNothing;
  if (S_ISREG(status.st_mode)) return PathKind::kFile;
  if (S_ISDIR(status.st_mode)) return PathKind::kDirectory;
  return S_ISLNK(status.st_mode) ? PathKind::kLink : PathKind::kOther;
}

bool is_plain_file(const std::string& directory, const std::string& name) {
  for (size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    if (path_kind(join_path(directory, name.substr(0, end))) != PathKind::kDirectory) return false;
  }
  return path_kind(join_path(directory, name)) == PathKind::kFile;
}

}  // namespace fastsft
