#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace fastsft {

// Ends the process if it waits too long for other ranks and nothing else would end it: one line on
// stderr with the process's status, then kExitPeerLost without any cleaning up, because destructors
// would wait for the same ranks. Time in which the whole process was stopped does not count.
class Watchdog {
 public:
  explicit Watchdog(double timeout_seconds);  // 0: never
  ~Watchdog();

  // Marks that the calling thread waits for other ranks until the end of the scope. Not nested.
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

// Ends a process that is stuck anywhere: if its phase makes no progress for too long, writes one
// line on stderr with its status, then exit status kExitPeerLost without any cleaning up, which
// would wait for the same ranks. Every change of the status and every piece of a file that is
// written is progress. Time in which the whole process was stopped does not count.
class PhaseDeadline {
 public:
  static PhaseDeadline& instance();

  // Enters `phase`, which must make progress every `seconds`; 0: no limit. The first limit starts a
  // thread.
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

// The steady clock, in nanoseconds.
inline int64_t steady_ns() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

// How long the whole process was stopped (SIGSTOP, a frozen container, a suspended machine) while a
// thread of it waited: nanoseconds that the wait lasted longer than planned. 0 for the delay of a
// busy machine. Time in which no thread could run counts for no deadline of this process.
inline int64_t stopped_ns(int64_t waited_ns, int64_t planned_ns) {
  constexpr int64_t kBusy = 2'000'000'000;
  const int64_t late = waited_ns - planned_ns;
  return late > kBusy ? late : 0;
}

}  // namespace fastsft
