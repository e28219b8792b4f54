#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>

#include "core/error.h"
#include "storage/file_system.h"

namespace fastsft {
namespace {

constexpr int kMaxRetries = 3;  // of a transient EIO

uint64_t free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return 0;
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

[[noreturn]] void fail(const char* operation, const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    throw_runtime("cannot ", operation, " ", path, ": ", std::strerror(error), "; ",
                  free_bytes(parent_path(path)),
                  " bytes are free there; free some space or choose another directory");
  }
  throw_runtime("cannot ", operation, " ", path, ": ", std::strerror(error));
}

// Repeats `call` while it is interrupted, and a few times after EIO. Returns its result.
template <typename Call>
auto checked(const char* operation, const std::string& path, Call&& call) {
  for (int retries = 0;;) {
    const auto result = call();
    if (result >= 0) return result;
    const int error = errno;
    if (error == EINTR || (error == EIO && retries++ < kMaxRetries)) continue;
    fail(operation, path, error);
  }
}

class PosixFile : public WritableFile {
 public:
  explicit PosixFile(const std::string& path)
      : path_(path), descriptor_(checked("create", path, [&] {
          return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        })) {}

  ~PosixFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto count =
          checked("write", path_, [&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  void sync() override {
    // After a failed fsync the kernel may drop the dirty pages: a second one would lie.
    while (::fsync(descriptor_) != 0) {
      if (errno != EINTR) fail("sync", path_, errno);
    }
  }

  void close() override {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0 && errno != EINTR) fail("close", path_, errno);
  }

 private:
  std::string path_;
  int descriptor_;
};

void sync_path(const std::string& path, int flags) {
  const int descriptor =
      checked("open", path, [&] { return ::open(path.c_str(), flags | O_CLOEXEC); });
  int result;
  do result = ::fsync(descriptor);
  while (result != 0 && errno == EINTR);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) fail("sync", path, error);
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

class PosixFileSystem : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create_file(const std::string& path) override {
    return std::make_unique<PosixFile>(path);
  }
  void sync_file(const std::string& path) override { sync_path(path, O_RDONLY); }
  void sync_directory(const std::string& path) override { sync_path(path, O_RDONLY | O_DIRECTORY); }
  void rename(const std::string& from, const std::string& to) override {
    checked(concat("rename ", from, " to").c_str(), to,
            [&] { return std::rename(from.c_str(), to.c_str()); });
  }
  bool exchange(const std::string& first, const std::string& second) override;
  void make_directory(const std::string& path) override {
    checked("create directory", path, [&] { return ::mkdir(path.c_str(), 0755); });
  }
  void remove_file(const std::string& path) override {
    checked("remove", path, [&] { return ::unlink(path.c_str()); });
  }
  void remove_directory(const std::string& path) override {
    checked("remove directory", path, [&] { return ::rmdir(path.c_str()); });
  }
  bool exists(const std::string& path) override {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0;
  }
  std::vector<DirectoryEntry> list(const std::string& path) override;
  uint64_t available_bytes(const std::string& path) override { return free_bytes(path); }
};

bool PosixFileSystem::exchange(const std::string& first, const std::string& second) {
#ifdef RENAME_EXCHANGE
  if (::renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
  if (!unknown) fail(concat("exchange ", first, " and").c_str(), second, errno);
#endif
  return false;
}

std::vector<DirectoryEntry> PosixFileSystem::list(const std::string& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) fail("list", path, errno);
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

FileSystem& posix_file_system() {
  static PosixFileSystem file_system;
  return file_system;
}

}  // namespace fastsft
