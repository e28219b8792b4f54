#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace fastsft {

// A whole file, mapped read-only. Its pages are read from disk on first access. The constructor
// throws std::invalid_argument if the path is no regular file, std::runtime_error if it cannot be
// read. If the file is truncated while it is mapped, the process exits with a message on stderr.
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
