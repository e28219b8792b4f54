#pragma once

#include <chrono>
#include <cstdint>

namespace fastsft {

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
