#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace fastsft {

// Ends the process if it waits too long for other ranks and nothing else would end it. It prints
// one line with the rank status to stderr and exits with kExitPeerLost, without cleanup, because
// destructors would wait for the same ranks. Time during which the whole process was suspended does
// not count.
class Watchdog {
 public:
  explicit Watchdog(double timeout_seconds);  // 0: no timeout
  ~Watchdog();

  // Marks the calling thread as waiting for other ranks until the scope's end. Not nested.
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

// Ends a process that is stuck anywhere. If a phase makes no progress for too long, it prints one
// line with the rank status to stderr and exits with kExitPeerLost, without cleanup, which would
// wait for the same ranks. A changed status or a written piece of a file is progress. Time
// during which the whole process was suspended does not count.
class PhaseDeadline {
 public:
  static PhaseDeadline& instance();

  // Enters `phase`, which must make progress every `seconds`; 0: no limit. The first call with a
  // limit starts the thread.
  void enter(const std::string& phase, double seconds);
  void progress() noexcept;

 private:
  PhaseDeadline() = default;
  void watch();
  [[noreturn]] void end_process();

  std::atomic<int64_t> limit_ns_{0}, last_ns_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_;
  std::thread thread_;
};

// Returns the steady clock's time in nanoseconds.
inline int64_t steady_ns() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// Returns the nanoseconds for which the whole process was suspended (SIGSTOP, a frozen container, a
// sleeping machine) while a thread waited: the time beyond the planned wait. Returns 0 for the
// short delays of a busy machine. Deadlines do not count suspended time.
inline int64_t stopped_ns(int64_t waited_ns, int64_t planned_ns) {
  constexpr int64_t kBusy = 2'000'000'000;
  const int64_t late = waited_ns - planned_ns;
  return late > kBusy ? late : 0;
}

}  // namespace fastsft
