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
#include "storage/posix_place.h"

namespace fastsft {
namespace {

uint64_t free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) return 0;
  return static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
}

// Returns advice for an error message. The texts are the same as in
// python/fastsft/runtime/file_calls.py.
std::string way_out(int error, const std::string& path) {
  switch (error) {
    case ENOSPC:
      return concat("; ", free_bytes(parent_path(path)),
                    " bytes are free there; free some space or choose another directory");
    case EDQUOT:
      return "; your quota there is used up: remove files of yours, or choose another directory";
    case EFBIG:
      return "; the file would be larger than `ulimit -f` or its file system allows: raise the "
             "limit, or choose another directory";
    case EROFS:
      return "; that file system is mounted read-only: choose another directory";
    case EACCES:
      return "; this user may not write there: change the permissions, or choose another directory";
    case EPERM:
      return "; the file or its folder is protected (`lsattr` says how): remove the protection, or "
             "choose another directory";
    case EMFILE:
      return "; this process has too many files open: raise `ulimit -n`";
    case ENFILE:
      return "; this machine has too many files open: close some, or raise fs.file-max";
    case ENAMETOOLONG:
      return "; choose a shorter path";
    case EIO:
      return "; the disk or the network failed: look at the system's log (`dmesg`), then start the "
             "same command again";
    case ENOMEM:
      return "; the kernel has no memory left: end other programs, or use a machine with more";
    case ESTALE:
      return "; the network file system lost it: mount it again, then start the same command again";
    default:
      return "";
  }
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

void remove_from(int directory, const char* name, const std::string& path, int flags) {
  checked_call(
      flags == AT_REMOVEDIR ? "remove directory" : "remove", path,
      [&] { return ::unlinkat(directory, name, flags); },
      [](int error) { return error == ENOENT; });
}

void remove_at(const std::string& path, int flags) {
  const PosixPlace place(path);
  if (!place) fail_call("remove", path, errno);
  remove_from(place.directory(), place.name(), path, flags);
}

// Lists a directory. Takes ownership of `descriptor`.
std::vector<DirectoryEntry> entries_of(int descriptor, const std::string& path) {
  DIR* directory = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (directory == nullptr) fail_call("list", path, errno);
  std::vector<DirectoryEntry> entries;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    struct stat status {};
    if (name == "." || name == "..") continue;
    const int found = ::fstatat(::dirfd(directory), name.c_str(), &status, AT_SYMLINK_NOFOLLOW);
    entries.push_back({name, found == 0 && S_ISDIR(status.st_mode)});
  }
  ::closedir(directory);
  std::sort(entries.begin(), entries.end(),
            [](const auto& left, const auto& right) { return left.name < right.name; });
  return entries;
}

constexpr int kListFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

class PosixDirectory : public Directory {
 public:
  PosixDirectory(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  ~PosixDirectory() override { ::close(descriptor_); }
  PosixDirectory(const PosixDirectory&) = delete;
  PosixDirectory& operator=(const PosixDirectory&) = delete;

  std::vector<DirectoryEntry> list() override {
    return entries_of(::openat(descriptor_, ".", kListFlags), path_);
  }
  std::unique_ptr<Directory> enter(const std::string& name) override {
    const std::string path = join_path(path_, name);
    return std::make_unique<PosixDirectory>(path, checked_call("open directory", path, [&] {
                                              return ::openat(descriptor_, name.c_str(),
                                                              kListFlags | O_NOFOLLOW);
                                            }));
  }
  void remove_file(const std::string& name) override {
    remove_from(descriptor_, name.c_str(), join_path(path_, name), 0);
  }
  void remove_directory(const std::string& name) override {
    remove_from(descriptor_, name.c_str(), join_path(path_, name), AT_REMOVEDIR);
  }

 private:
  std::string path_;
  int descriptor_;
};

class PosixFileSystem : public FileSystem {
 public:
  explicit PosixFileSystem(Caching caching) : caching_(caching) {}

  std::unique_ptr<WritableFile> create_file(const std::string& path) override {
    return std::make_unique<PosixFile>(path, O_EXCL, caching_);
  }
  std::unique_ptr<RangeFile> open_ranges(const std::string& path) override {
    return std::make_unique<PosixFile>(path, 0, caching_);
  }
  std::unique_ptr<Directory> open_directory(const std::string& path) override {
    return std::make_unique<PosixDirectory>(path, checked_call("open directory", path, [&] {
                                              const PosixPlace place(path);
                                              if (!place) return -1;
                                              return ::openat(place.directory(), place.name(),
                                                              kListFlags | O_NOFOLLOW);
                                            }));
  }
  void sync_file(const std::string& path) override { sync_path(path, O_RDONLY | O_NONBLOCK); }
  void sync_directory(const std::string& path) override { sync_path(path, O_RDONLY | O_DIRECTORY); }
  void rename(const std::string& from, const std::string& to) override;
  bool exchange(const std::string& first, const std::string& second) override;
  void make_directory(const std::string& path) override {
    checked_call(
        "create directory", path,
        [&] {
          const PosixPlace place(path);
          return place ? ::mkdirat(place.directory(), place.name(), 0755) : -1;
        },
        [](int error) { return error == EEXIST; });
  }
  void remove_file(const std::string& path) override { remove_at(path, 0); }
  void remove_directory(const std::string& path) override { remove_at(path, AT_REMOVEDIR); }
  bool exists(const std::string& path) override { return is_there(path); }
  std::vector<DirectoryEntry> list(const std::string& path) override;
  uint64_t available_bytes(const std::string& path) override { return free_bytes(path); }

 private:
  Caching caching_;
};

void PosixFileSystem::rename(const std::string& from, const std::string& to) {
  checked_call(
      concat("rename ", from, " to").c_str(), to,
      [&] {
        const PosixPlace source(from), target(to);
        if (!source || !target) return -1;
        return ::renameat(source.directory(), source.name(), target.directory(), target.name());
      },
      [&](int error) { return error == ENOENT && is_there(to) && !is_there(from); });
}

bool PosixFileSystem::exchange(const std::string& first, const std::string& second) {
#ifdef RENAME_EXCHANGE
  const PosixPlace one(first), other(second);
  const int result = !one || !other ? -1
                                    : ::renameat2(one.directory(), one.name(), other.directory(),
                                                  other.name(), RENAME_EXCHANGE);
  if (result == 0) return true;
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP ||
                       errno == EPERM;  // sandboxes return EPERM for unknown system calls
  if (!unknown) fail_call(concat("exchange ", first, " and").c_str(), second, errno);
#endif
  return false;
}

std::vector<DirectoryEntry> PosixFileSystem::list(const std::string& path) {
  return entries_of(::open(path.c_str(), kListFlags), path);
}

}  // namespace

void fail_call(const char* operation, const std::string& path, int error) {
  throw FileError(
      concat("cannot ", operation, " ", path, ": ", std::strerror(error), way_out(error, path)));
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
