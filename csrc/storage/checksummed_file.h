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
  std::string name;  // file name without directory
  uint64_t size = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileDigest&) const = default;
};

// A file that computes its size and checksum while it is written.
class ChecksummedFile {
 public:
  ChecksummedFile(FileSystem& file_system, const std::string& path);

  void write(std::span<const std::byte> bytes);
  void write(const std::string& text);
  uint64_t size() const { return digest_.size; }
  // Syncs and closes the file, and returns its digest. The file is durable on return.
  FileDigest finish();

 private:
  std::unique_ptr<WritableFile> file_;
  FileDigest digest_;
};

// Calls work(block) for successive blocks of `bytes`. A block fits the processor core's cache, so
// that `work` may read it twice cheaply.
template <typename Work>
void for_blocks(std::span<const std::byte> bytes, const Work& work) {
  constexpr size_t kBlock = 256 << 10;
  while (!bytes.empty()) {
    const size_t size = std::min(kBlock, bytes.size());
    work(bytes.first(size));
    bytes = bytes.subspan(size);
  }
}

// Writes `text` to a new file, durable on return.
FileDigest write_file(FileSystem& file_system, const std::string& path, const std::string& text);

// Computes the digest of an existing file. Throws FileError if `path` is no regular file.
FileDigest digest_file(const std::string& path);

}  // namespace fastsft
