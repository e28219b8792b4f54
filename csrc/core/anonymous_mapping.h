#pragma once

#include <cstddef>

namespace fastsft {

// Zeroed memory that is only committed when it is touched (mmap); large blocks request huge pages.
// Throws std::bad_alloc.
class AnonymousMapping {
 public:
  explicit AnonymousMapping(size_t size);
  ~AnonymousMapping();
  AnonymousMapping(AnonymousMapping&& other) noexcept;
  AnonymousMapping& operator=(AnonymousMapping&& other) noexcept;
  AnonymousMapping(const AnonymousMapping&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* base_ = nullptr;  // of the mapping; `data_` is its first huge page
  size_t mapped_ = 0;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastsft
