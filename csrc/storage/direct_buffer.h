#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace fastsft {

// Returns true if files in the directory of `path` are best written past the page cache: on local
// disks whose file system allows O_DIRECT and cached writes to the same file (ext4, XFS). On other
// file systems, such as network file systems, the kernel's write-back is faster.
bool takes_direct_writes(const std::string& path);

// Collects written bytes in page-aligned memory and writes whole blocks past the page cache. This
// avoids the kernel's copy, which takes most of a save's processor time. The incomplete blocks at
// both ends of a contiguous range, and short ranges, go to `cached`, which must write to the same
// file.
class DirectBuffer {
 public:
  using Write = std::function<void(uint64_t offset, std::span<const std::byte>)>;

  // `path`: for messages. `opened`: a descriptor of the file, which the caller keeps open.
  // `cached`: writes through the page cache.
  DirectBuffer(std::string path, int opened, Write cached);
  ~DirectBuffer();
  DirectBuffer(const DirectBuffer&) = delete;
  DirectBuffer& operator=(const DirectBuffer&) = delete;

  // Writes `bytes` at `offset`. Bytes that do not continue the previous call's range begin a new
  // range.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Writes all collected bytes to the file. Does not sync.
  void flush();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  void write_direct(uint64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  int opened_;
  Write cached_;
  std::unique_ptr<std::byte, Free> memory_;
  int descriptor_ = -1;
  // true after the file system has refused O_DIRECT; all bytes then go to `cached_`
  bool refused_ = false;
  uint64_t base_ = 0;  // file offset of the first byte of `memory_`, a multiple of the block size
  size_t begin_ = 0;   // bytes [begin_, end_) of `memory_` are still to be written
  size_t end_ = 0;
};

}  // namespace fastsft
