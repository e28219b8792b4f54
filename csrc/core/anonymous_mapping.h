#pragma once

#include <cstddef>

namespace fastsft {

// Zeroed memory from mmap, which the system commits when it is touched. Large blocks request huge
// pages. The constructor throws std::bad_alloc.
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
  void* base_ = nullptr;  // the mapping's start; `data_` is aligned inside it
  size_t mapped_ = 0;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastsft
