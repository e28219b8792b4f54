#include "storage/checksummed_file.h"

#include <algorithm>
#include <vector>

#include "core/watchdog.h"
#include "storage/byte_source.h"
#include "storage/crc32c.h"

namespace fastsft {
namespace {

constexpr size_t kBlockBytes = 1 << 20;

}  // namespace

ChecksummedFile::ChecksummedFile(FileSystem& file_system, const std::string& path)
    : file_(file_system.create_file(path)), digest_{last_component(path), 0, 0} {}

void ChecksummedFile::write(std::span<const std::byte> bytes) {
  for_blocks(bytes, [&](std::span<const std::byte> block) {
    digest_.crc32c = crc32c(block, digest_.crc32c);
    file_->write(block);
    digest_.size += block.size();
    PhaseDeadline::instance().progress();
  });
}

void ChecksummedFile::write(const std::string& text) { write(std::as_bytes(std::span(text))); }

FileDigest ChecksummedFile::finish() {
  file_->sync();
  file_->close();
  return digest_;
}

FileDigest write_file(FileSystem& file_system, const std::string& path, const std::string& text) {
  ChecksummedFile file(file_system, path);
  file.write(text);
  return file.finish();
}

// The file is read rather than mapped. A mapped file's pages would count as this process's memory,
// and truncation of the file would kill the process.
FileDigest digest_file(const std::string& path) {
  const FileBytes file(path);
  FileDigest digest{last_component(path), 0, 0};
  std::vector<std::byte> block(kBlockBytes);
  while (digest.size < file.size()) {
    const auto part = std::span(block).first(std::min(block.size(), file.size() - digest.size));
    file.read_at(digest.size, part);
    digest.size += part.size();
    digest.crc32c = crc32c(part, digest.crc32c);
  }
  return digest;
}

}  // namespace fastsft
