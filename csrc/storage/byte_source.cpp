#include "storage/byte_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/file_error.h"
#include "core/regular_file.h"

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

}  // namespace fastsft
