#pragma once

#include <optional>

#include "storage/direct_buffer.h"
#include "storage/file_system.h"

namespace fastsft {

enum class Caching { kCached, kDirect };

// A file open for writing. kCached: the kernel is asked to begin with the disk while the rest is
// written, so that `sync` has little left to wait for. kDirect: past the page cache where the file
// system is one for that (direct_buffer.h), else as kCached; a call may then tell of an error of
// the bytes of calls before it, `close` at the latest.
class PosixFile : public WritableFile, public RangeFile {
 public:
  // `flags`, added to O_WRONLY | O_CREAT, as of open(2).
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
  uint64_t end_ = 0;            // of what `write` wrote
  uint64_t pending_begin_ = 0;  // a stretch that the kernel was not asked to write yet
  uint64_t pending_end_ = 0;
};

}  // namespace fastsft
