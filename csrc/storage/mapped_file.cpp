#include "storage/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/regular_file.h"
#include "storage/mapping_guard.h"
#include "storage/posix_call.h"

namespace fastsft {
namespace {

size_t size_of(int descriptor) {
  struct stat status {};
  ::fstat(descriptor, &status);
  return static_cast<size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = open_regular_file(path, "");
  size_ = size_of(descriptor);
  void* memory =
      size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (memory == MAP_FAILED) fail_call("map", path, error);
  data_ = static_cast<const std::byte*>(memory);
  if (size_ != 0) guard_mapping(data_, size_, path_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

}  // namespace fastsft
