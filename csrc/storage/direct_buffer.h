#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace fastsft {

// Whether files below the directory of `path` are best written past the page cache: local disks
// whose file system takes O_DIRECT next to other writes of the same file (ext4, XFS). Elsewhere, as
// on network file systems, the kernel's own delayed writing is quicker.
bool takes_direct_writes(const std::string& path);

// Collects the bytes of stretches of a file in page-aligned memory and writes whole blocks past the
// page cache: without the kernel's copy, which costs the processor more than all else of a save.
// What does not fill a block, at either end of a stretch, and stretches too short to be worth it
// go to `cached`, which must write to the same file.
class DirectBuffer {
 public:
  using Write = std::function<void(uint64_t offset, std::span<const std::byte>)>;

  // `path` is for messages; `opened`: a descriptor of the file, which the caller keeps open.
  DirectBuffer(std::string path, int opened, Write cached);
  ~DirectBuffer();
  DirectBuffer(const DirectBuffer&) = delete;
  DirectBuffer& operator=(const DirectBuffer&) = delete;

  // A stretch ends where the next bytes do not continue it.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  // Gives everything to the file; on return nothing is held back. Does not sync.
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
  bool refused_ = false;  // by the file system: everything goes to `cached_` from then on
  uint64_t base_ = 0;     // file offset of the first byte of `memory_`, whole blocks
  size_t begin_ = 0;      // [begin_, end_) of `memory_` waits to be written
  size_t end_ = 0;
};

}  // namespace fastsft
