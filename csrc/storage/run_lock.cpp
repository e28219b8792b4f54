#include "storage/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/error.h"
#include "storage/file_system.h"

namespace fastsft {
namespace {

constexpr const char* kLockFile = ".fastsft-lock";

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

// Of the open file, not of the process: closing some other descriptor of it does not give it free.
bool try_lock(int descriptor, const std::string& path) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  throw_runtime("cannot lock ", path, ": ", std::strerror(errno));
}

// Whether the open file still has its name: the run that held the lock before removes it.
bool has_name(int descriptor, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

RunLock::RunLock(const std::string& directory, const std::string& holder,
                 const std::string& way_out)
    : path_(join_path(directory, kLockFile)) {
  while (descriptor_ < 0) {
    const int opened = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (opened < 0) throw_runtime("cannot open ", path_, ": ", std::strerror(errno));
    descriptor_ = opened;
    if (!try_lock(opened, path_)) {
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
  const bool written =
      ::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, text.data(), text.size(), 0) > 0;
  if (!written) {
    const int error = errno;
    release();
    throw_runtime("cannot write ", path_, ": ", std::strerror(error));
  }
}

RunLock::~RunLock() { release(); }

void RunLock::release() noexcept {
  if (descriptor_ < 0) return;
  ::unlink(path_.c_str());  // while the lock is held: who comes next makes a file of its own
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace fastsft
