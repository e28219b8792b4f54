#pragma once

#include "storage/file_system.h"

namespace fastsft {

// A file open for writing. The kernel is asked to begin with the disk while the rest is written, so
// that `sync` has little left to wait for.
class PosixFile : public WritableFile, public RangeFile {
 public:
  // `flags` beside O_WRONLY | O_CREAT, as of open(2).
  PosixFile(const std::string& path, int flags);
  ~PosixFile() override;
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  void write(std::span<const std::byte> bytes) override;
  void write_at(uint64_t offset, std::span<const std::byte> bytes) override;
  void sync() override;
  void close() override;

 private:
  void start_writeback(uint64_t offset, uint64_t size);

  std::string path_;
  int descriptor_;
  uint64_t end_ = 0;            // of what `write` wrote
  uint64_t pending_begin_ = 0;  // a stretch that the kernel was not asked to write yet
  uint64_t pending_end_ = 0;
};

}  // namespace fastsft
