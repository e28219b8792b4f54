#include "storage/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/regular_file.h"
#include "storage/posix_call.h"

namespace fastsft {

FileSource::FileSource(const std::string& path, const std::string& what)
    : name_(what + " " + path), descriptor_(open_regular_file(path, what)) {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

FileSource::~FileSource() { ::close(descriptor_); }

size_t FileSource::read(std::span<char> to) {
  while (true) {
    const ssize_t count = ::read(descriptor_, to.data(), to.size());
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR)
      throw FileError(concat("cannot read the ", name_, ": ", std::strerror(errno)));
  }
}

TextSource::TextSource(std::string text) : text_(std::move(text)) {}

size_t TextSource::read(std::span<char> to) {
  const size_t count = std::min(to.size(), text_.size() - at_);
  std::memcpy(to.data(), text_.data() + at_, count);
  at_ += count;
  return count;
}

FileBytes::FileBytes(const std::string& path)
    : path_(path), descriptor_(checked_call("open", path, [&] {
        return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      })) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw FileError(concat("cannot read ", path, ": not a regular file"));
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

FileBytes::~FileBytes() { ::close(descriptor_); }

void FileBytes::read_at(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const auto count = checked_call("read", path_, [&] {
      return ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    });
    if (count == 0) throw FileError(concat("cannot read ", path_, ": it ends at byte ", offset));
    to = to.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

}  // namespace fastsft
