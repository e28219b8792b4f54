#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace fastsft {

// An array at whose end values are appended. It grows with realloc, which moves the pages of a
// large block instead of copying them: unlike a vector, the array never needs twice its memory.
template <typename Value>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<Value>);

 public:
  GrowingArray() = default;
  GrowingArray(GrowingArray&& other) noexcept { *this = std::move(other); }
  GrowingArray& operator=(GrowingArray&& other) noexcept {
    std::swap(values_, other.values_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  // The values must not be in this array.
  void append(std::span<const Value> values) {
    if (values.size() > capacity_ - size_) grow(values.size());
    std::copy(values.begin(), values.end(), values_.get() + size_);
    size_ += values.size();
  }
  void push_back(Value value) { append(std::span(&value, 1)); }

  size_t size() const { return size_; }
  std::span<const Value> values() const { return {values_.get(), size_}; }

 private:
  struct Free {
    void operator()(Value* values) const { std::free(values); }
  };

  // Makes room for `count` more values. Throws std::bad_alloc.
  void grow(size_t count) {
    constexpr size_t kMost = SIZE_MAX / 2 / sizeof(Value);
    if (count > kMost - size_) throw std::bad_alloc();
    const size_t capacity = std::max({size_ + count, capacity_ + capacity_ / 2, size_t{64}});
    void* moved = std::realloc(values_.get(), capacity * sizeof(Value));
    if (moved == nullptr) throw std::bad_alloc();
    (void)values_.release();
    values_.reset(static_cast<Value*>(moved));
    capacity_ = capacity;
  }

  std::unique_ptr<Value, Free> values_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace fastsft
