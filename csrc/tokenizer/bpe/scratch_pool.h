#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

namespace fastsft {

// A pool for buffers and caches. A thread borrows an object for a call, and the object keeps its
// content between calls. With few threads, each thread usually gets its own object back. The pool
// has no locks.
template <typename Scratch>
class ScratchPool {
 public:
  explicit ScratchPool(std::function<std::unique_ptr<Scratch>()> make) : make_(std::move(make)) {}
  ~ScratchPool() {
    for (auto& slot : slots_) delete slot.load();
  }
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // An object that returns to the pool when its scope ends.
  class Borrowed {
   public:
    explicit Borrowed(const ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    ~Borrowed() { pool_.give_back(std::move(scratch_)); }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Scratch& operator*() const { return *scratch_; }
    Scratch* operator->() const { return scratch_.get(); }

   private:
    const ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  static constexpr size_t kSlots = 64;

  static size_t first_slot() {
    return std::hash<std::thread::id>{}(std::this_thread::get_id()) % kSlots;
  }

  std::unique_ptr<Scratch> take() const {
    const size_t first = first_slot();
    for (size_t i = 0; i < kSlots; ++i) {
      auto& slot = slots_[(first + i) % kSlots];
      if (slot.load(std::memory_order_relaxed) == nullptr) continue;
      if (Scratch* scratch = slot.exchange(nullptr, std::memory_order_acquire)) {
        return std::unique_ptr<Scratch>(scratch);
      }
    }
    return make_();
  }

  void give_back(std::unique_ptr<Scratch> scratch) const {
    const size_t first = first_slot();
    for (size_t i = 0; i < kSlots; ++i) {
      Scratch* expected = nullptr;
      if (slots_[(first + i) % kSlots].compare_exchange_strong(expected, scratch.get(),
                                                               std::memory_order_release)) {
        static_cast<void>(scratch.release());
        return;
      }
    }
  }

  std::function<std::unique_ptr<Scratch>()> make_;
  mutable std::array<std::atomic<Scratch*>, kSlots> slots_{};
};

}  // namespace fastsft
