#include "storage/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "storage/posix_call.h"

namespace fastsft {

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
