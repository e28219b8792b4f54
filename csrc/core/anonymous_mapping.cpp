#include "core/anonymous_mapping.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace fastsft {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;

}  // namespace

AnonymousMapping::AnonymousMapping(size_t size) : size_(size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0;
  mapped_ = size + slack;
  if (mapped_ < size) throw std::bad_alloc();
  if (mapped_ == 0) return;
  base_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) throw std::bad_alloc();
  auto address = reinterpret_cast<uintptr_t>(base_);
  if (slack != 0) address = (address + kHugePage - 1) & ~(kHugePage - 1);
  data_ = reinterpret_cast<void*>(address);
#ifdef MADV_HUGEPAGE
  if (slack != 0) ::madvise(data_, size, MADV_HUGEPAGE);  // only a hint; works without huge pages
#endif
}

AnonymousMapping::~AnonymousMapping() {
  if (base_ != nullptr) ::munmap(base_, mapped_);
}

AnonymousMapping::AnonymousMapping(AnonymousMapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

AnonymousMapping& AnonymousMapping::operator=(AnonymousMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace fastsft
