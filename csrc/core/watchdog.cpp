#include "core/watchdog.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/error.h"
#include "core/start_threads.h"
#include "core/stopped_time.h"
#include "core/whereabouts.h"

namespace fastsft {
namespace {

[[noreturn]] void end_process(double seconds) {
  const std::string line = concat("error: ", Whereabouts::instance().text(), ": waited ", seconds,
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
    // A wait that begins or ends meanwhile has a deadline of its own.
    if (stopped > 0 && deadline != kNone) {
      deadline_.compare_exchange_strong(deadline, deadline + stopped);
    }
    before = steady_ns();
    if (before > deadline_.load(std::memory_order_relaxed)) {
      end_process(static_cast<double>(timeout_ns_) / 1e9);
    }
  }
}

}  // namespace fastsft
