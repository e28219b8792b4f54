#pragma once

#include <cstddef>

namespace fastsft {

// Memory that begins as zeros and costs nothing until it is touched; large blocks ask the kernel
// for huge pages. Throws std::bad_alloc.
class ZeroedPages {
 public:
  explicit ZeroedPages(size_t size);
  ~ZeroedPages();
  ZeroedPages(ZeroedPages&& other) noexcept;
  ZeroedPages& operator=(ZeroedPages&& other) noexcept;
  ZeroedPages(const ZeroedPages&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* base_ = nullptr;  // of the mapping; `data_` is its first huge page
  size_t mapped_ = 0;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastsft
