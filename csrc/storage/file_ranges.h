#pragma once

#include <vector>

#include "storage/checksummed_file.h"

namespace fastsft {

// Bytes [offset, offset + size) of a file, and their checksum.
struct RangeDigest {
  std::string name;  // of the file, without directory
  uint64_t offset = 0;
  uint64_t size = 0;
  uint32_t crc32c = 0;
};

// The digests of whole files from those of all their ranges, in any order. std::runtime_error
// naming the file when bytes are missing or were written twice.
std::vector<FileDigest> join_ranges(std::vector<RangeDigest> ranges);

// A file of which this process writes some ranges, in ascending order, and others the rest.
class ChecksummedRanges {
 public:
  ChecksummedRanges(FileSystem& file_system, const std::string& path);

  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Durable on return. Ranges that touch are one.
  std::vector<RangeDigest> finish();

 private:
  std::unique_ptr<RangeFile> file_;
  std::string name_;
  std::vector<RangeDigest> ranges_;
};

}  // namespace fastsft
