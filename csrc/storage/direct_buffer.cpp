#include "storage/direct_buffer.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "storage/file_system.h"
#include "storage/posix_call.h"

namespace fastsft {
namespace {

// The block size of direct writes: a multiple of every disk's block size. It is at least a page, so
// that no page is written both directly and through the cache.
const size_t kBlock = std::max<size_t>(4096, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
constexpr size_t kCapacity = size_t{4} << 20;
constexpr size_t kWorthIt = size_t{256} << 10;
// only newer kernel headers define this number in linux/magic.h
constexpr long kXfsMagic = 0x58465342;

}  // namespace

bool takes_direct_writes(const std::string& path) {
  struct statfs status {};
  if (::statfs(parent_path(path).c_str(), &status) != 0) return false;
  return status.f_type == EXT4_SUPER_MAGIC || status.f_type == kXfsMagic;
}

void DirectBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

DirectBuffer::DirectBuffer(std::string path, int opened, Write cached)
    : path_(std::move(path)), opened_(opened), cached_(std::move(cached)) {}

DirectBuffer::~DirectBuffer() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void DirectBuffer::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  if (!memory_) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, kCapacity)));
    if (!memory_) throw std::bad_alloc();
  }
  if (offset != base_ + end_) {
    flush();
    base_ = offset / kBlock * kBlock;
    begin_ = end_ = offset - base_;
  }
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kCapacity - end_);
    std::memcpy(memory_.get() + end_, bytes.data(), count);
    end_ += count;
    bytes = bytes.subspan(count);
    if (end_ == kCapacity) flush();
  }
}

void DirectBuffer::flush() {
  // The state is updated before the writes, so that no byte is written again after an error.
  const std::span<const std::byte> held(memory_.get(), end_);
  const uint64_t base = base_;
  const size_t begin = begin_, end = end_;
  base_ += end / kBlock * kBlock;
  begin_ = end_ = end % kBlock;
  const size_t first = (begin + kBlock - 1) / kBlock * kBlock, last = end / kBlock * kBlock;
  if (refused_ || first + kWorthIt > last) {
    if (begin < end) cached_(base + begin, held.subspan(begin, end - begin));
    return;
  }
  if (begin < first) cached_(base + begin, held.subspan(begin, first - begin));
  write_direct(base + first, held.subspan(first, last - first));
  if (last < end) cached_(base + last, held.subspan(last));
}

void DirectBuffer::write_direct(uint64_t offset, std::span<const std::byte> bytes) {
  if (descriptor_ < 0) {  // reopens the same file, even if its path now belongs to another file
    const std::string same = "/proc/self/fd/" + std::to_string(opened_);
    descriptor_ = ::open(same.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
  }
  refused_ = descriptor_ < 0;
  while (!refused_ && !bytes.empty()) {
    const auto count = checked_call("write", path_, [&]() -> ssize_t {
      const auto result =
          ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      refused_ = result < 0 && errno == EINVAL;
      return refused_ ? 0 : result;
    });
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  if (!bytes.empty()) cached_(offset, bytes);
}

}  // namespace fastsft
