// A library to preload: it writes down each call that changes files below some folders, and lets
// one of them fail.
//
// Calls are named by what they do and by their path below the folder, with random digits as `*`;
// the fault is put before, into or after the nth call of one name. Nothing happens before
// `count_calls`. What libc does inside (fopen) is not seen; fastsft opens no files by it.

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

// Of a fault: what happens to the call that it meets.
enum class Fault : int { kNone, kKillBefore, kKillAfter, kShort, kOnce, kFromThenOn };

struct Plan {
  std::string folders[4];  // with a slash at the end
  int record = -1;         // a line a call
  std::string call;        // "write checkpoint-*/model.safetensors"
  int nth = 0;
  Fault fault = Fault::kNone;
  int error = 0;
};

Plan* plan = nullptr;  // never deleted: threads that end with the process still write
std::atomic<int> met{0};
std::atomic<bool> fails_from_now_on{false};

constexpr int kRandomDigits = 16;

std::string without_random_digits(const std::string& path) {
  std::string text;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t digits =
        std::min(path.find_first_not_of("0123456789abcdef", at), path.size()) - at;
    text += digits >= kRandomDigits ? "*" : path.substr(at, digits ? digits : 1);
    at += digits ? digits : 1;
  }
  return text;
}

// The path below the folder that holds it, or nothing.
std::string below_folders(const std::string& path) {
  for (const std::string& folder : plan->folders) {
    if (!folder.empty() && path.compare(0, folder.size(), folder) == 0)
      return without_random_digits(path.substr(folder.size()));
    if (!folder.empty() && path + "/" == folder) return ".";
  }
  return "";
}

std::string target_of(int descriptor) {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  std::string path(target, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  if (const std::size_t gone = path.rfind(" (deleted)"); gone != std::string::npos)
    path.erase(gone);
  if (const std::size_t mark = path.rfind("/#"); mark != std::string::npos)
    path.replace(mark + 2, path.npos, "*");
  return path;
}

std::string path_at(int directory, const char* path) {
  if (path == nullptr) return "";
  if (path[0] == '/') return path;
  const std::string folder = target_of(directory);
  if (directory != AT_FDCWD) return folder + "/" + path;
  char here[PATH_MAX];
  return std::string(::getcwd(here, sizeof here) ? here : "") + "/" + path;
}

void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

bool fails_with_others(const char* operation) {
  const bool frees = std::strcmp(operation, "unlink") == 0 || std::strcmp(operation, "close") == 0;
  return !frees || (plan->error == EROFS && std::strcmp(operation, "close") != 0);
}

// What becomes of this call.
Fault fault_of(const char* operation, const std::string& path) {
  const std::string name = below_folders(path);
  if (name.empty()) return Fault::kNone;
  const std::string call = std::string(operation) + " " + name;
  const std::string line = call + "\n";
  ::syscall(SYS_write, plan->record, line.data(), line.size());
  if (fails_from_now_on) return fails_with_others(operation) ? Fault::kOnce : Fault::kNone;
  if (call != plan->call || ++met != plan->nth) return Fault::kNone;
  ::syscall(SYS_write, plan->record, "met\n", 4);
  if (plan->fault == Fault::kFromThenOn) fails_from_now_on = true;
  return plan->fault;
}

// `call`, or its fault; `part` does half of it.
template <typename Call, typename Part>
long with_fault(const char* operation, const std::string& path, Call call, Part part) {
  const int before = errno;
  const Fault fault = plan ? fault_of(operation, path) : Fault::kNone;
  errno = before;
  switch (fault) {
    case Fault::kNone:
      return call();
    case Fault::kKillBefore:
      die();
      break;
    case Fault::kKillAfter:
      call(), die();
      break;
    case Fault::kShort:
      return part();
    case Fault::kOnce:
    case Fault::kFromThenOn:
      break;
  }
  if (std::strcmp(operation, "close") == 0)
    call();  // the descriptor is gone whatever close answers
  errno = plan->error;
  return -1;
}

template <typename Call>
long with_fault(const char* operation, const std::string& path, Call call) {
  return with_fault(operation, path, call, call);
}

std::string written_at(int descriptor) { return plan ? target_of(descriptor) : ""; }
std::string named(int directory, const char* path) { return plan ? path_at(directory, path) : ""; }

bool makes(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

int open_at(int directory, const char* path, int flags, mode_t mode) {
  const auto call = [&] { return ::syscall(SYS_openat, directory, path, flags, mode); };
  if (!plan || !makes(flags)) return static_cast<int>(call());
  return static_cast<int>(with_fault("create", named(directory, path), call));
}

int rename_at(int from, const char* before, int to, const char* after, unsigned flags) {
  return static_cast<int>(with_fault("rename", named(to, after), [&] {
    return ::syscall(SYS_renameat2, from, before, to, after, flags);
  }));
}

int unlink_at(int directory, const char* path, int flags) {
  return static_cast<int>(with_fault("unlink", named(directory, path), [&] {
    return ::syscall(SYS_unlinkat, directory, path, flags);
  }));
}

int make_directory_at(int directory, const char* path, mode_t mode) {
  return static_cast<int>(with_fault("mkdir", named(directory, path), [&] {
    return ::syscall(SYS_mkdirat, directory, path, mode);
  }));
}

int link_at(int from, const char* before, int to, const char* after, int flags) {
  return static_cast<int>(with_fault("link", named(to, after), [&] {
    return ::syscall(SYS_linkat, from, before, to, after, flags);
  }));
}

int symbolic_link_at(const char* before, int to, const char* after) {
  return static_cast<int>(with_fault("link", named(to, after),
                                     [&] { return ::syscall(SYS_symlinkat, before, to, after); }));
}

int truncate_file(int descriptor, off_t size) {
  return static_cast<int>(with_fault("truncate", written_at(descriptor),
                                     [&] { return ::syscall(SYS_ftruncate, descriptor, size); }));
}

ssize_t write_file(int descriptor, const void* bytes, std::size_t count) {
  return with_fault(
      "write", written_at(descriptor),
      [&] { return ::syscall(SYS_write, descriptor, bytes, count); },
      [&] { return ::syscall(SYS_write, descriptor, bytes, (count + 1) / 2); });
}

ssize_t write_file_at(int descriptor, const void* bytes, std::size_t count, off_t offset) {
  return with_fault(
      "write", written_at(descriptor),
      [&] { return ::syscall(SYS_pwrite64, descriptor, bytes, count, offset); },
      [&] { return ::syscall(SYS_pwrite64, descriptor, bytes, (count + 1) / 2, offset); });
}

ssize_t send_file(int out, int in, off_t* offset, std::size_t count) {
  return with_fault(
      "write", written_at(out), [&] { return ::syscall(SYS_sendfile, out, in, offset, count); },
      [&] { return ::syscall(SYS_sendfile, out, in, offset, (count + 1) / 2); });
}

mode_t mode_of(int flags, va_list& list) { return makes(flags) ? va_arg(list, mode_t) : 0; }

}  // namespace

extern "C" {

// folders: below which calls count, one a line; record: gets a line a call, and "met" after that of
// the fault.
void count_calls(const char* folders, const char* record, const char* call, int nth, int fault,
                 int error) {
  auto* made = new Plan;
  std::string left = folders;
  for (std::string& folder : made->folders) {
    const std::size_t end = left.find('\n');
    folder = left.substr(0, end);
    if (!folder.empty()) folder += '/';
    left = end == std::string::npos ? "" : left.substr(end + 1);
  }
  const int opened = ::open(record, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  made->record = ::fcntl(opened, F_DUPFD_CLOEXEC, 200);
  ::close(opened);
  made->call = call;
  made->nth = nth;
  made->fault = static_cast<Fault>(fault);
  made->error = error;
  plan = made;
}

#define OPEN(name)                               \
  int name(const char* path, int flags, ...) {   \
    va_list list;                                \
    va_start(list, flags);                       \
    const mode_t mode = mode_of(flags, list);    \
    va_end(list);                                \
    return open_at(AT_FDCWD, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
#define OPEN_AT(name)                                         \
  int name(int directory, const char* path, int flags, ...) { \
    va_list list;                                             \
    va_start(list, flags);                                    \
    const mode_t mode = mode_of(flags, list);                 \
    va_end(list);                                             \
    return open_at(directory, path, flags, mode);             \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

ssize_t write(int descriptor, const void* bytes, size_t count) {
  return write_file(descriptor, bytes, count);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  return write_file_at(descriptor, bytes, count, offset);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t count, off64_t offset) {
  return write_file_at(descriptor, bytes, count, offset);
}
ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  return with_fault(
      "write", written_at(descriptor),
      [&] { return ::syscall(SYS_writev, descriptor, parts, count); },
      [&] { return ::syscall(SYS_writev, descriptor, parts, (count + 1) / 2); });
}
ssize_t sendfile(int out, int in, off_t* offset, size_t count) {
  return send_file(out, in, offset, count);
}
ssize_t sendfile64(int out, int in, off64_t* offset, size_t count) {
  return send_file(out, in, offset, count);
}
int fsync(int descriptor) {
  return static_cast<int>(with_fault("fsync", written_at(descriptor),
                                     [&] { return ::syscall(SYS_fsync, descriptor); }));
}
int fdatasync(int descriptor) {
  return static_cast<int>(with_fault("fsync", written_at(descriptor),
                                     [&] { return ::syscall(SYS_fdatasync, descriptor); }));
}
int ftruncate(int descriptor, off_t size) noexcept { return truncate_file(descriptor, size); }
int ftruncate64(int descriptor, off64_t size) noexcept { return truncate_file(descriptor, size); }
int rename(const char* before, const char* after) noexcept {
  return rename_at(AT_FDCWD, before, AT_FDCWD, after, 0);
}
int renameat(int from, const char* before, int to, const char* after) noexcept {
  return rename_at(from, before, to, after, 0);
}
int renameat2(int from, const char* before, int to, const char* after, unsigned flags) noexcept {
  return rename_at(from, before, to, after, flags);
}
int unlink(const char* path) noexcept { return unlink_at(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return unlink_at(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int directory, const char* path, int flags) noexcept {
  return unlink_at(directory, path, flags);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return make_directory_at(AT_FDCWD, path, mode);
}
int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return make_directory_at(directory, path, mode);
}
int link(const char* before, const char* after) noexcept {
  return link_at(AT_FDCWD, before, AT_FDCWD, after, 0);
}
int linkat(int from, const char* before, int to, const char* after, int flags) noexcept {
  return link_at(from, before, to, after, flags);
}
int symlink(const char* before, const char* after) noexcept {
  return symbolic_link_at(before, AT_FDCWD, after);
}
int symlinkat(const char* before, int to, const char* after) noexcept {
  return symbolic_link_at(before, to, after);
}
int close(int descriptor) {
  const auto call = [&] { return ::syscall(SYS_close, descriptor); };
  const int before = errno;
  const int flags = plan ? ::fcntl(descriptor, F_GETFL) : -1;
  errno = before;
  const bool writes = flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_RDONLY;
  return static_cast<int>(writes ? with_fault("close", target_of(descriptor), call) : call());
}

}  // extern "C"
