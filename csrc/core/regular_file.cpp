#include "core/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace fastsft {
namespace {

std::string named(const std::string& path, const std::string& what) {
  return what.empty() ? path : concat("the ", what, " ", path);
}

const char* way_out(const std::string& path, int error) {
  struct stat status {};
  switch (error) {
    case EMFILE:
      return "; this process has too many files open: raise `ulimit -n`";
    case EIO:
      return "; its disk or network failed: look at the system's log";
    case EACCES:
    case EPERM:
      return "; give this user the right to read it and to enter its folders, with chmod";
    case ENOENT:
      return ::lstat(path.c_str(), &status) == 0
                 ? ", at the end of this link; copy or download the file again"
                 : "; copy it there, or name another";
    default:
      return "";
  }
}

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw FileError(
      concat("cannot read ", named(path, what), ": ", std::strerror(error), way_out(path, error)));
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/";
constexpr off_t kMostOfPointer = 1024;  // limit in the specification of Git LFS

// Throws for a Git LFS pointer: a repository cloned without Git LFS has these small text files
// instead of its large files.
void check_no_pointer(int descriptor, off_t size, const std::string& path,
                      const std::string& what) {
  if (size > kMostOfPointer) return;
  std::array<char, kPointer.size()> start{};
  const ssize_t count = ::pread(descriptor, start.data(), start.size(), 0);
  if (std::string_view(start.data(), count < 0 ? 0 : static_cast<size_t>(count)) != kPointer)
    return;
  throw_invalid("cannot read ", named(path, what), ": a Git-LFS pointer, in the place of the file ",
                "itself; run `git lfs pull` in its directory, or download the file");
}

}  // namespace

int open_regular_file(const std::string& path, const std::string& what) {
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (opened < 0) fail(path, what, errno);
  Descriptor descriptor(opened);
  struct stat status {};
  if (::fstat(opened, &status) == 0 && S_ISREG(status.st_mode)) {
    check_no_pointer(opened, status.st_size, path, what);
    return descriptor.release();
  }
  const char* kind = S_ISDIR(status.st_mode)    ? "a directory"
                     : S_ISFIFO(status.st_mode) ? "a FIFO"
                     : S_ISSOCK(status.st_mode) ? "a socket"
                                                : "a device";
  throw_invalid("cannot read ", named(path, what), ": expected a regular file, got ", kind,
                "; copy or download the file to this place, or name another");
}

std::string read_regular_file(const std::string& path, size_t max_bytes, const std::string& what) {
  const Descriptor file(open_regular_file(path, what));
  struct stat status {};
  ::fstat(file.value(), &status);
  const auto size = static_cast<size_t>(status.st_size);
  require(size <= max_bytes, "cannot read ", named(path, what), ": expected at most ", max_bytes,
          " bytes, got ", size, "; is it another file? Copy or download the file again");
  std::string text(size, '\0');
  size_t at = 0;
  while (at < size) {
    const ssize_t count = ::read(file.value(), text.data() + at, size - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, what, errno);
    if (count == 0) break;
    at += static_cast<size_t>(count);
  }
  text.resize(at);
  return text;
}

}  // namespace fastsft
