#include "storage/mapped_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/regular_file.h"
#include "storage/posix_call.h"

namespace fastsft {
namespace {

// An entry of the table that the signal handler reads. A handler may neither lock nor allocate, so
// the table has a fixed size. An entry is in use while `begin` is not 0.
struct Mapping {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::array<char, 512> path{};
};

constexpr size_t kMaxMappings = 1024;  // mappings beyond this number are not covered by the handler
std::array<Mapping, kMaxMappings> mappings;
std::mutex mutex;  // serializes changes of the table
struct sigaction before {};

void say(const char* text) {
  // if writing fails, there is no other way to report
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void on_bus_error(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const uintptr_t begin = mapping.begin.load();
    if (begin == 0 || address < begin || address >= mapping.end.load()) continue;
    say("error: ");
    say(mapping.path.data());
    say(": was cut short while it was in use, or cannot be read any more; start the same command "
        "again: it goes on from the newest checkpoint\n");
    ::_exit(1);
  }
  // not one of our mappings: the repeated access goes to the previous handler
  ::sigaction(SIGBUS, &before, nullptr);
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &before);
}

// Adds a mapping to the table of the SIGBUS handler. If a mapped file is truncated or its disk
// fails, the kernel sends SIGBUS on the next access and the process would die without a message.
// For the mappings in the table, the handler prints the file's name to stderr and exits with status
// 1. Other addresses are left to the handler that was installed before.
void guard_mapping(const void* begin, size_t size, const std::string& path) {
  const std::lock_guard lock(mutex);
  static const bool installed = (install(), true);
  static_cast<void>(installed);
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load() != 0) continue;
    const size_t length = std::min(path.size(), mapping.path.size() - 1);
    std::memcpy(mapping.path.data(), path.data(), length);
    mapping.path[length] = '\0';
    mapping.end.store(reinterpret_cast<uintptr_t>(begin) + size);
    mapping.begin.store(reinterpret_cast<uintptr_t>(begin));
    return;
  }
}

// Removes a mapping from the table. Call it before the memory is unmapped.
void forget_mapping(const void* begin) {
  const std::lock_guard lock(mutex);
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load() == reinterpret_cast<uintptr_t>(begin)) mapping.begin.store(0);
  }
}

size_t size_of(int descriptor) {
  struct stat status {};
  ::fstat(descriptor, &status);
  return static_cast<size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = open_regular_file(path, "");
  size_ = size_of(descriptor);
  void* memory =
      size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (memory == MAP_FAILED) fail_call("map", path, error);
  data_ = static_cast<const std::byte*>(memory);
  if (size_ != 0) guard_mapping(data_, size_, path_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

}  // namespace fastsft
