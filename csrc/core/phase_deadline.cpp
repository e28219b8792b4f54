#include "core/phase_deadline.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/start_threads.h"
#include "core/stopped_time.h"
#include "core/whereabouts.h"

namespace fastsft {
PhaseDeadline& PhaseDeadline::instance() {
  // Never destroyed: its thread lives as long as the process.
  static PhaseDeadline* deadline = new PhaseDeadline;
  return *deadline;
}

void PhaseDeadline::enter(const std::string& phase, double seconds) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  last_ns_.store(steady_ns());
  limit_ns_.store(static_cast<int64_t>(seconds * 1e9));
  if (seconds > 0 && !thread_.joinable()) {
    thread_ = start_needed_thread("the limits of phases", [this] { watch(); });
  }
  changed_.notify_all();
}

void PhaseDeadline::progress() noexcept {
  if (limit_ns_.load(std::memory_order_relaxed) > 0) last_ns_.store(steady_ns());
}

void PhaseDeadline::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    const int64_t limit = limit_ns_.load();
    if (limit <= 0) {
      changed_.wait(lock);
      continue;
    }
    const int64_t left = last_ns_.load() + limit - steady_ns();
    if (left <= 0) end_process();
    const int64_t second = 1'000'000'000, planned = std::min(left, second), before = steady_ns();
    changed_.wait_for(lock, std::chrono::nanoseconds(planned));
    const int64_t after = steady_ns(), stopped = stopped_ns(after - before, planned);
    if (stopped > 0) last_ns_.store(std::min(last_ns_.load() + stopped, after));
  }
}

void PhaseDeadline::end_process() {
  const std::string line =
      concat("error: ", Whereabouts::instance().text(), ": no progress for ",
             static_cast<double>(limit_ns_.load()) / 1e9, " s in phase ", phase_,
             " (--phase_timeouts, --ddp_timeout): this rank is stuck, or waits for one that is; "
             "the same command resumes from the newest checkpoint\n");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  std::_Exit(kExitPeerLost);
}

}  // namespace fastsft
