#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fastsft {

struct SharedControl;

// How one process of a host hands bytes to others of the same host: a file of /dev/shm that all of
// them map. Rank 0 sends, in chunks through two slots, so that it copies one in while the receivers
// copy the other out; messages go from all to all. The file loses its name once all have mapped it:
// processes that are killed leave nothing.
//
// Every member makes the same calls in the same order, each from one thread at a time. Every wait
// has a deadline. std::runtime_error past it, or when another member has aborted.
class SharedMemory {
 public:
  // Rank 0 makes the file; it must be there before the others come.
  SharedMemory(const std::string& name, size_t rank, size_t size, uint64_t slot_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Until all members have mapped the file, which has no name after that.
  void meet(double deadline_s);
  // Rank 0's bytes, in everybody's.
  void broadcast(std::span<std::byte> bytes, double deadline_s);
  // Everybody's message, in order of rank; `mine` has at most kMessageBytes.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, double deadline_s);
  // No call of any member succeeds from now on.
  void abort() noexcept;

  static constexpr uint64_t kMessageBytes = 4096;
  static constexpr size_t kMostMembers = 64;

 private:
  void make();
  void map(int descriptor);
  std::byte* slot(uint64_t chunk) const;
  std::byte* message(size_t rank) const;

  std::string path_;
  size_t rank_, size_;
  uint64_t slot_bytes_, file_bytes_;
  std::byte* memory_ = nullptr;
  SharedControl* control_ = nullptr;
  uint64_t chunks_ = 0, gathers_ = 0;
};

}  // namespace fastsft
