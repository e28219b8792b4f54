#include "storage/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "storage/posix_call.h"
#include "storage/posix_place.h"

namespace fastsft {
namespace {

constexpr uint64_t kWritebackStep = uint64_t{8} << 20;

// Throws FileError unless the opened file is a regular file with a single name. Through a hard
// link, another user's file would be overwritten.
void check_own(int descriptor, const std::string& path) {
  struct stat found {};
  if (::fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink <= 1) return;
  ::close(descriptor);
  throw FileError(concat("cannot create ", path,
                         ": another program has put a file of its own there; choose a directory "
                         "that others cannot write to"));
}

// Opens a file for writing. If the answer to the first attempt was lost, that attempt may have
// created the file, so a retry drops O_EXCL.
int open_to_write(const std::string& path, int flags) {
  flags |= O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int descriptor = checked_call("create", path, [&] {
    const PosixPlace place(path);
    const int opened = place ? ::openat(place.directory(), place.name(), flags, 0644) : -1;
    if (opened < 0 && is_transient(errno)) flags &= ~O_EXCL;
    return opened;
  });
  check_own(descriptor, path);
  return descriptor;
}

}  // namespace

PosixFile::PosixFile(const std::string& path, int flags, Caching caching)
    : path_(path), descriptor_(open_to_write(path, flags)) {
  if (caching == Caching::kDirect && takes_direct_writes(path)) {
    direct_.emplace(path, descriptor_, [this](uint64_t offset, std::span<const std::byte> bytes) {
      write_cached(offset, bytes);
    });
  }
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PosixFile::write(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
  end_ += bytes.size();
}

void PosixFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (direct_) {
    direct_->write_at(offset, bytes);
  } else {
    write_cached(offset, bytes);
  }
}

void PosixFile::write_cached(uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t begin = offset;
  while (!bytes.empty()) {
    const auto count = checked_call("write", path_, [&] {
      return ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  start_writeback(begin, offset - begin);
}

void PosixFile::start_writeback(uint64_t offset, uint64_t size) {
  if (offset != pending_end_) pending_begin_ = offset;
  pending_end_ = offset + size;
  if (pending_end_ - pending_begin_ < kWritebackStep) return;
  // The result is ignored: this call is an optimization, and `sync` writes everything.
  static_cast<void>(::sync_file_range(descriptor_, static_cast<off_t>(pending_begin_),
                                      static_cast<off_t>(pending_end_ - pending_begin_),
                                      SYNC_FILE_RANGE_WRITE));
  pending_begin_ = pending_end_;
}

void PosixFile::sync() {
  if (direct_) direct_->flush();
  // No retry after a failed fsync: the kernel may have dropped the dirty pages, and a second call
  // would report success.
  while (::fsync(descriptor_) != 0) {
    if (errno != EINTR) fail_call("sync", path_, errno);
  }
}

void PosixFile::close() {
  if (direct_) direct_->flush();
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0 && errno != EINTR) fail_call("close", path_, errno);
}

}  // namespace fastsft
