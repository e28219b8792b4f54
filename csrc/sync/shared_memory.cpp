#include "sync/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "core/error.h"

namespace fastsft {

// What one member tells the others, in a cache line of its own. Counts only grow.
struct alignas(64) SharedMember {
  std::atomic<uint64_t> present, chunks, gathers;
};

// At the beginning of the file; a new file is zero.
struct SharedControl {
  alignas(64) std::atomic<uint64_t> slot_bytes, aborted;
  std::array<SharedMember, SharedMemory::kMostMembers> members;
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free);  // so they work between processes

constexpr uint64_t kSlots = 2;
constexpr int kSpins = 2000;
constexpr auto kNap = std::chrono::microseconds(50);

using Count = std::atomic<uint64_t> SharedMember::*;

[[noreturn]] void fail(const std::string& operation, const std::string& path, int error) {
  throw_runtime("shared memory: cannot ", operation, " ", path, ": ", std::strerror(error));
}

std::string late_members(const SharedControl& control, size_t first, size_t size, Count count,
                         uint64_t wanted) {
  std::string late;
  for (size_t rank = first; rank < size; ++rank) {
    if ((control.members[rank].*count).load() >= wanted) continue;
    late += (late.empty() ? "" : ", ") + std::to_string(rank);
  }
  return late;
}

// Until members [first, size) have counted to `wanted`.
void wait_for(const SharedControl& control, size_t first, size_t size, Count count, uint64_t wanted,
              double deadline_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_s);
  size_t rank = first;
  for (int spins = 0;; ++spins) {
    while (rank < size &&
           (control.members[rank].*count).load(std::memory_order_acquire) >= wanted) {
      ++rank;
    }
    if (rank >= size) return;
    if (control.aborted.load() != 0) throw_runtime("shared memory: another member has given up");
    if (spins < kSpins) {
      std::this_thread::yield();
      continue;
    }
    if (std::chrono::steady_clock::now() > end) {
      throw_runtime("shared memory: no sign of rank ",
                    late_members(control, first, size, count, wanted), " for ", deadline_s,
                    " seconds");
    }
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace

SharedMemory::SharedMemory(const std::string& name, size_t rank, size_t size, uint64_t slot_bytes)
    : path_("/dev/shm/" + name), rank_(rank), size_(size), slot_bytes_(slot_bytes) {
  require(!name.empty() && name.find('/') == std::string::npos,
          "shared memory: expected a file name, got \"", name, "\"");
  require(size >= 1 && size <= kMostMembers && rank < size, "shared memory: expected 1 to ",
          kMostMembers, " members and a rank below that, got rank ", rank, " of ", size);
  require(slot_bytes >= 64 && slot_bytes % 64 == 0, "slot_bytes: expected a multiple of 64, got ",
          slot_bytes);
  file_bytes_ = sizeof(SharedControl) + 2 * size * kMessageBytes + kSlots * slot_bytes;
  if (rank == 0) {
    make();
  } else {
    const int descriptor = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
      fail("open rank 0's", path_ + " (are all members on one host, in one container?)", errno);
    }
    map(descriptor);
    require(control_->slot_bytes.load() == slot_bytes, "slot_bytes: rank 0 has ",
            control_->slot_bytes.load(), ", rank ", rank, " ", slot_bytes);
  }
  control_->members[rank].present.store(1, std::memory_order_release);
}

SharedMemory::~SharedMemory() {
  if (memory_ != nullptr) ::munmap(memory_, file_bytes_);
  ::unlink(path_.c_str());  // whoever is left: rank 0 may have been killed
}

void SharedMemory::make() {
  const int descriptor = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) fail("make", path_, errno);
  // Room that is not there would be a SIGBUS at the first write.
  const int error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(file_bytes_));
  if (error != 0) {
    ::close(descriptor);
    ::unlink(path_.c_str());
    fail(concat("reserve ", file_bytes_, " bytes for"), path_, error);
  }
  map(descriptor);
  new (memory_) SharedControl{};
  control_->slot_bytes.store(slot_bytes_);
}

void SharedMemory::map(int descriptor) {
  void* memory = ::mmap(nullptr, file_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (memory == MAP_FAILED) fail("map", path_, error);
  memory_ = static_cast<std::byte*>(memory);
  control_ = std::launder(reinterpret_cast<SharedControl*>(memory_));
}

std::byte* SharedMemory::slot(uint64_t chunk) const {
  return memory_ + sizeof(SharedControl) + 2 * size_ * kMessageBytes +
         (chunk % kSlots) * slot_bytes_;
}

std::byte* SharedMemory::message(size_t rank) const {
  return memory_ + sizeof(SharedControl) + ((gathers_ % 2) * size_ + rank) * kMessageBytes;
}

void SharedMemory::meet(double deadline_s) {
  wait_for(*control_, 0, size_, &SharedMember::present, 1, deadline_s);
  ::unlink(path_.c_str());  // by all: rank 0 may have been killed
}

void SharedMemory::broadcast(std::span<std::byte> bytes, double deadline_s) {
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min<uint64_t>(bytes.size(), slot_bytes_));
    if (rank_ == 0) {
      const uint64_t free_after = chunks_ < kSlots ? 0 : chunks_ + 1 - kSlots;
      wait_for(*control_, 1, size_, &SharedMember::chunks, free_after, deadline_s);
      std::memcpy(slot(chunks_), chunk.data(), chunk.size());
    } else {
      wait_for(*control_, 0, 1, &SharedMember::chunks, chunks_ + 1, deadline_s);
      std::memcpy(chunk.data(), slot(chunks_), chunk.size());
    }
    control_->members[rank_].chunks.store(++chunks_, std::memory_order_release);
    bytes = bytes.subspan(chunk.size());
  }
}

void SharedMemory::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                              double deadline_s) {
  require(mine.size() <= kMessageBytes && all.size() == mine.size() * size_,
          "shared memory: expected a message of at most ", kMessageBytes, " bytes and room for ",
          size_, ", got ", mine.size(), " and ", all.size());
  std::memcpy(message(rank_), mine.data(), mine.size());
  control_->members[rank_].gathers.store(gathers_ + 1, std::memory_order_release);
  wait_for(*control_, 0, size_, &SharedMember::gathers, gathers_ + 1, deadline_s);
  for (size_t rank = 0; rank < size_; ++rank) {
    std::memcpy(all.data() + rank * mine.size(), message(rank), mine.size());
  }
  ++gathers_;
}

void SharedMemory::abort() noexcept { control_->aborted.store(1); }

}  // namespace fastsft
