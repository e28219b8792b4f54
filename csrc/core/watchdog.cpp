#include "core/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/rank_status.h"
#include "core/start_threads.h"

namespace fastsft {
namespace {

[[noreturn]] void end_process(double seconds) {
  const std::string line = concat("error: ", RankStatus::instance().text(), ": waited ", seconds,
                                  " s in vain (--ddp_timeout); another rank died or is stuck\n");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  std::_Exit(kExitPeerLost);
}

}  // namespace

Watchdog::Watchdog(double timeout_seconds)
    : timeout_ns_(static_cast<int64_t>(timeout_seconds * 1e9)) {
  if (timeout_ns_ > 0)
    thread_ = start_needed_thread("the watch over other ranks", [this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Watchdog::Wait::Wait(Watchdog& watchdog) : watchdog_(watchdog) {
  if (watchdog.timeout_ns_ > 0) {
    watchdog.deadline_.store(steady_ns() + watchdog.timeout_ns_, std::memory_order_relaxed);
  }
}

void Watchdog::watch() {
  constexpr int64_t kPause = 500'000'000;
  std::unique_lock lock(mutex_);
  int64_t before = steady_ns();
  while (!stop_.wait_for(lock, std::chrono::nanoseconds(kPause), [this] { return stopped_; })) {
    const int64_t stopped = stopped_ns(steady_ns() - before, kPause);
    int64_t deadline = deadline_.load(std::memory_order_relaxed);
    // If a wait began or ended in the meantime, its deadline is already right.
    if (stopped > 0 && deadline != kNone) {
      deadline_.compare_exchange_strong(deadline, deadline + stopped);
    }
    before = steady_ns();
    if (before > deadline_.load(std::memory_order_relaxed)) {
      end_process(static_cast<double>(timeout_ns_) / 1e9);
    }
  }
}

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
      concat("error: ", RankStatus::instance().text(), ": no progress for ",
             static_cast<double>(limit_ns_.load()) / 1e9, " s in phase ", phase_,
             " (--phase_timeouts, --ddp_timeout): this rank is stuck, or waits for one that is; "
             "the same command resumes from the newest checkpoint\n");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  std::_Exit(kExitPeerLost);
}

}  // namespace fastsft
