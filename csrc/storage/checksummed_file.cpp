#include "storage/checksummed_file.h"

#include "storage/crc32c.h"
#include "storage/mapped_file.h"

namespace fastsft {

ChecksummedFile::ChecksummedFile(FileSystem& file_system, const std::string& path)
    : file_(file_system.create_file(path)), digest_{last_component(path), 0, 0} {}

void ChecksummedFile::write(std::span<const std::byte> bytes) {
  file_->write(bytes);
  digest_.size += bytes.size();
  digest_.crc32c = crc32c(bytes, digest_.crc32c);
}

void ChecksummedFile::write(const std::string& text) { write(std::as_bytes(std::span(text))); }

FileDigest ChecksummedFile::finish() {
  file_->sync();
  file_->close();
  return digest_;
}

FileDigest digest_file(const std::string& path) {
  const MappedFile file(path);
  return {last_component(path), file.bytes().size(), crc32c(file.bytes())};
}

}  // namespace fastsft
