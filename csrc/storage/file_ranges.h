#pragma once

#include <vector>

#include "storage/checksummed_file.h"

namespace fastsft {

// A file's byte range [offset, offset + size) and its checksum.
struct RangeDigest {
  std::string name;  // file name without directory
  uint64_t offset = 0;
  uint64_t size = 0;
  uint32_t crc32c = 0;
};

// Joins range digests, given in any order, into whole files' digests. Throws
// std::runtime_error with the file's name if bytes are missing or were written twice.
std::vector<FileDigest> join_ranges(std::vector<RangeDigest> ranges);

// A file that several processes write; this process writes some of its ranges, in ascending order.
class ChecksummedRanges {
 public:
  ChecksummedRanges(FileSystem& file_system, const std::string& path);

  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Syncs and closes the file, and returns a digest for each range. Adjacent ranges are merged.
  // Durable on return.
  std::vector<RangeDigest> finish();

 private:
  std::unique_ptr<RangeFile> file_;
  std::string name_;
  std::vector<RangeDigest> ranges_;
};

}  // namespace fastsft
