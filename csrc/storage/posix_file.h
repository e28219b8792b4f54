#pragma once

#include <optional>

#include "storage/direct_buffer.h"
#include "storage/file_system.h"

namespace fastsft {

enum class Caching { kCached, kDirect };

// A file open for writing. kCached: the kernel starts writing to disk early, so that `sync` waits
// less. kDirect: bypasses the page cache if the file system supports it well (direct_buffer.h),
// else as kCached. Bytes are collected first, so a call may report the failure of an earlier call;
// `close` reports the last failure.
class PosixFile : public WritableFile, public RangeFile {
 public:
  // `flags`: flags of open(2), added to O_WRONLY | O_CREAT.
  PosixFile(const std::string& path, int flags, Caching caching = Caching::kCached);
  ~PosixFile() override;
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  void write(std::span<const std::byte> bytes) override;
  void write_at(uint64_t offset, std::span<const std::byte> bytes) override;
  void sync() override;
  void close() override;

 private:
  void write_cached(uint64_t offset, std::span<const std::byte> bytes);
  void start_writeback(uint64_t offset, uint64_t size);

  std::string path_;
  int descriptor_;
  std::optional<DirectBuffer> direct_;
  uint64_t end_ = 0;  // where the next `write` appends
  // [pending_begin_, pending_end_): range whose write-back was not yet started
  uint64_t pending_begin_ = 0;
  uint64_t pending_end_ = 0;
};

}  // namespace fastsft
