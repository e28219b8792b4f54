#include "storage/file_ranges.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "core/watchdog.h"
#include "storage/crc32c.h"

namespace fastsft {

std::vector<FileDigest> join_ranges(std::vector<RangeDigest> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const RangeDigest& left, const RangeDigest& right) {
    return std::tie(left.name, left.offset, left.size) <
           std::tie(right.name, right.offset, right.size);
  });
  std::vector<FileDigest> files;
  for (const auto& range : ranges) {
    if (files.empty() || files.back().name != range.name) files.push_back({range.name, 0, 0});
    FileDigest& file = files.back();
    if (range.offset != file.size) {
      throw FileError(
          concat(range.name, ": bytes from ", std::min(range.offset, file.size), " to ",
                 std::max(range.offset, file.size),
                 range.offset > file.size ? " were written by no rank" : " were written twice"));
    }
    file.crc32c = crc32c_combine(file.crc32c, range.crc32c, range.size);
    file.size += range.size;
  }
  return files;
}

ChecksummedRanges::ChecksummedRanges(FileSystem& file_system, const std::string& path)
    : file_(file_system.open_ranges(path)), name_(last_component(path)) {}

void ChecksummedRanges::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (ranges_.empty() || ranges_.back().offset + ranges_.back().size != offset) {
    ranges_.push_back({name_, offset, 0, 0});
  }
  RangeDigest& range = ranges_.back();
  for_blocks(bytes, [&](std::span<const std::byte> block) {
    range.crc32c = crc32c(block, range.crc32c);
    file_->write_at(range.offset + range.size, block);
    range.size += block.size();
    PhaseDeadline::instance().progress();
  });
}

std::vector<RangeDigest> ChecksummedRanges::finish() {
  file_->sync();
  file_->close();
  return std::move(ranges_);
}

}  // namespace fastsft
