#include "storage/run_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>
#include <string_view>

#include "core/error.h"
#include "storage/file_system.h"
#include "storage/posix_call.h"
#include "storage/posix_place.h"

namespace fastsft {
namespace {

constexpr const char* kLockFile = ".fastsft-lock";
constexpr off_t kMaxOwnerBytes = 512;

std::string owner_text() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> started{};
  std::strftime(started.data(), started.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return concat("host ", host.data(), ", process ", ::getpid(), ", since ", started.data());
}

std::string read_owner(int descriptor) {
  std::array<char, 512> text{};
  const auto count = ::pread(descriptor, text.data(), text.size() - 1, 0);
  if (count <= 0) return "a run that has not said who it is";
  std::string owner(text.data(), static_cast<size_t>(count));
  return owner.substr(0, owner.find('\n'));
}

// Takes the lock without waiting. It belongs to the open file description, so closing another
// descriptor of the same file does not release it.
bool take_lock(int descriptor, const std::string& path) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw FileError(concat("cannot lock ", path, ": ", std::strerror(errno)));
}

// Returns true if the open file still has its name. The previous holder removes the file when it
// releases the lock.
bool has_name(int descriptor, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

// Returns true if the open file is a lock file made by a run. A user's file that happens to have
// its name must not be overwritten.
bool is_lock_file(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1) {
    return false;
  }
  constexpr std::string_view kBegin = "host ";
  std::array<char, kBegin.size()> text{};
  const auto count = ::pread(descriptor, text.data(), text.size(), 0);
  return status.st_size == 0 ||
         (status.st_size <= kMaxOwnerBytes &&
          std::string_view(text.data(), static_cast<size_t>(std::max<ssize_t>(count, 0))) ==
              kBegin);
}

// Opens or creates the lock file. Throws std::invalid_argument if the name belongs to anything but
// a lock file.
int open_lock_file(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const int opened = ::open(path.c_str(), kFlags, 0644);
  const int error = errno;
  const PathKind kind = path_kind(path);
  const bool other = kind != PathKind::kFile && kind != PathKind::kNothing;
  if (other || (opened >= 0 && has_name(opened, path) && !is_lock_file(opened))) {
    if (opened >= 0) ::close(opened);
    throw_invalid(path, ": expected the lock file of a run, got ",
                  other ? "a link, a directory or a device"
                        : "a file that no run wrote, or one with other names",
                  "; it is left as it is: rename or remove it, or choose another --output_dir");
  }
  if (opened < 0) fail_call("open", path, error);
  return opened;
}

}  // namespace

// The locks of this process. A forked child (such as a data loader's worker) closes its copies of
// the descriptors, because a lock lasts until every process has closed the open file, and the child
// may outlive a killed parent.
class HeldLocks {
 public:
  static HeldLocks& instance() {
    // never destroyed, because locks may outlive static objects
    static auto* const held = new HeldLocks;
    return *held;
  }
  void add(RunLock* lock) {
    const std::scoped_lock guard(mutex_);
    locks_.insert(lock);
  }
  void remove(RunLock* lock) {
    const std::scoped_lock guard(mutex_);
    locks_.erase(lock);
  }

 private:
  HeldLocks() {
    ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] { instance().leave(); });
  }
  // Closes the descriptors in a forked child.
  void leave() {
    for (RunLock* const lock : locks_) {
      ::close(lock->descriptor_);
      lock->descriptor_ = -1;
    }
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<RunLock*> locks_;
};

RunLock::RunLock(const std::string& directory, const std::string& holder,
                 const std::string& way_out)
    : path_(join_path(directory, kLockFile)) {
  while (descriptor_ < 0) {
    const int opened = open_lock_file(path_);
    descriptor_ = opened;
    if (!take_lock(opened, path_)) {
      const std::string owner = read_owner(opened);
      ::close(opened);
      descriptor_ = -1;
      throw_invalid(directory, ": in use by ", holder, " (", owner, "); ", way_out);
    }
    if (!has_name(opened, path_)) {
      ::close(opened);
      descriptor_ = -1;
    }
  }
  const std::string text = owner_text() + "\n";
  const bool written = ::pwrite(descriptor_, text.data(), text.size(), 0) > 0 &&
                       ::ftruncate(descriptor_, static_cast<off_t>(text.size())) == 0;
  if (!written) {
    const int error = errno;
    release();
    fail_call("write", path_, error);
  }
  HeldLocks::instance().add(this);
}

RunLock::~RunLock() { release(); }

void RunLock::release() noexcept {
  HeldLocks::instance().remove(this);
  if (descriptor_ < 0) return;
  // The file is removed while the lock is held, so that the next run creates a new file. If the
  // directory was removed meanwhile, the name may already belong to another run.
  if (has_name(descriptor_, path_)) ::unlink(path_.c_str());
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace fastsft
