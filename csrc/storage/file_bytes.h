#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fastsft {

// Reads pieces of a file. Unlike a mapping, what was read does not stay in the process's memory.
class FileBytes {
 public:
  // FileError when it is no regular file, or cannot be opened.
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Fills `to` from `offset` on. std::runtime_error when the file ends before.
  void read_at(uint64_t offset, std::span<std::byte> to) const;
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

}  // namespace fastsft
