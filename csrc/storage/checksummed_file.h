#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "storage/file_system.h"

namespace fastsft {

struct FileDigest {
  std::string name;  // without directory
  uint64_t size = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileDigest&) const = default;
};

// A file whose size and checksum are taken while it is written.
class ChecksummedFile {
 public:
  ChecksummedFile(FileSystem& file_system, const std::string& path);

  void write(std::span<const std::byte> bytes);
  void write(const std::string& text);
  uint64_t size() const { return digest_.size; }
  // Durable on return.
  FileDigest finish();

 private:
  std::unique_ptr<WritableFile> file_;
  FileDigest digest_;
};

// Calls work(block) for one block of `bytes` after the other, small enough that what is read twice
// is in the core's cache the second time.
template <typename Work>
void for_blocks(std::span<const std::byte> bytes, const Work& work) {
  constexpr size_t kBlock = 256 << 10;
  while (!bytes.empty()) {
    const size_t size = std::min(kBlock, bytes.size());
    work(bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

// A new file with this text, durable on return.
FileDigest write_file(FileSystem& file_system, const std::string& path, const std::string& text);

// Of a file that someone else wrote. FileError unless it is a regular one.
FileDigest digest_file(const std::string& path);

}  // namespace fastsft
