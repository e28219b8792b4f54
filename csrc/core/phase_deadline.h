#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace fastsft {

// Ends a process that is stuck, whatever it is stuck in: when the phase it is in makes no progress
// for too long, one line on stderr with its whereabouts, then exit status kExitPeerLost without any
// cleaning up, which would wait for the same ranks. Every change of whereabouts and every piece of
// a file that is written is progress. Time in which the whole process was stopped does not count.
class PhaseDeadline {
 public:
  static PhaseDeadline& instance();

  // From now on the process is in `phase`, which makes progress every `seconds`; 0: no limit. The
  // first limit starts a thread.
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

}  // namespace fastsft
