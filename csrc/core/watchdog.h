#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace fastsft {

// Ends the process when it waits too long for other ranks where nothing else would end it: one line
// on stderr with the process's whereabouts, then kExitPeerLost without any cleaning up, because
// destructors would wait for the same ranks. Time in which the whole process was stopped does not
// count.
class Watchdog {
 public:
  explicit Watchdog(double timeout_seconds);  // 0: never
  ~Watchdog();

  // The calling thread waits for others until the end of the scope. Not nested.
  class Wait {
   public:
    explicit Wait(Watchdog& watchdog);
    ~Wait() { watchdog_.deadline_.store(kNone, std::memory_order_relaxed); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Watchdog& watchdog_;
  };

 private:
  static constexpr int64_t kNone = INT64_MAX;
  void watch();

  int64_t timeout_ns_;
  std::atomic<int64_t> deadline_{kNone};
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace fastsft
