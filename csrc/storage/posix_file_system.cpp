#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "storage/file_system.h"
#include "storage/posix_call.h"
#include "storage/posix_file.h"

namespace fastsft {
namespace {

uint64_t free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return 0;
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

void sync_path(const std::string& path, int flags) {
  const int descriptor =
      checked_call("open", path, [&] { return ::open(path.c_str(), flags | O_CLOEXEC); });
  int result;
  do result = ::fsync(descriptor);
  while (result != 0 && errno == EINTR);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) fail_call("sync", path, error);
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_gone(int error) { return error == ENOENT; }

class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(Caching caching) : caching_(caching) {}

  std::unique_ptr<WritableFile> create_file(const std::string& path) override {
    return std::make_unique<PosixFile>(path, O_TRUNC, caching_);
  }
  std::unique_ptr<RangeFile> open_ranges(const std::string& path) override {
    return std::make_unique<PosixFile>(path, 0, caching_);
  }
  void sync_file(const std::string& path) override { sync_path(path, O_RDONLY); }
  void sync_directory(const std::string& path) override { sync_path(path, O_RDONLY | O_DIRECTORY); }
  void rename(const std::string& from, const std::string& to) override;
  bool exchange(const std::string& first, const std::string& second) override;
  void make_directory(const std::string& path) override {
    checked_call(
        "create directory", path, [&] { return ::mkdir(path.c_str(), 0755); },
        [](int error) { return error == EEXIST; });
  }
  void remove_file(const std::string& path) override {
    checked_call("remove", path, [&] { return ::unlink(path.c_str()); }, is_gone);
  }
  void remove_directory(const std::string& path) override {
    checked_call("remove directory", path, [&] { return ::rmdir(path.c_str()); }, is_gone);
  }
  bool exists(const std::string& path) override { return is_there(path); }
  std::vector<DirectoryEntry> list(const std::string& path) override;
  uint64_t available_bytes(const std::string& path) override { return free_bytes(path); }

 private:
  Caching caching_;
};

void PosixFileSystem::rename(const std::string& from, const std::string& to) {
  checked_call(
      concat("rename ", from, " to").c_str(), to,
      [&] { return std::rename(from.c_str(), to.c_str()); },
      [&](int error) { return error == ENOENT && is_there(to) && !is_there(from); });
}

bool PosixFileSystem::exchange(const std::string& first, const std::string& second) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
  if (!unknown) fail_call(concat("exchange ", first, " and").c_str(), second, errno);
#endif
  return false;
}

std::vector<DirectoryEntry> PosixFileSystem::list(const std::string& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) fail_call("list", path, errno);
  std::vector<DirectoryEntry> entries;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({name, is_directory(join_path(path, name))});
  }
  ::closedir(directory);
  std::sort(entries.begin(), entries.end(),
            [](const auto& left, const auto& right) { return left.name < right.name; });
  return entries;
}

}  // namespace

void fail_call(const char* operation, const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    throw_runtime("cannot ", operation, " ", path, ": ", std::strerror(error), "; ",
                  free_bytes(parent_path(path)),
                  " bytes are free there; free some space or choose another directory");
  }
  throw_runtime("cannot ", operation, " ", path, ": ", std::strerror(error));
}

FileSystem& posix_file_system() {
  static PosixFileSystem file_system(Caching::kCached);
  return file_system;
}

FileSystem& direct_file_system() {
  static PosixFileSystem file_system(Caching::kDirect);
  return file_system;
}

}  // namespace fastsft
