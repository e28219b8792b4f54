#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace fastsft {

// A whole file, mapped read-only. Pages are read when they are touched.
// Throws std::invalid_argument when the path is no regular file, std::runtime_error when it cannot
// be read. A file that is cut while it is mapped ends the process with a line on stderr.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastsft
