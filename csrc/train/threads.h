#pragma once

#include <ATen/Parallel.h>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>

namespace fastsft {

// Returns how many threads at::parallel_for uses if `num_threads` are set. Fewer threads
// mean that the kernels are linked to another OpenMP runtime than torch. Restores torch's setting.
inline int64_t parallel_threads(int64_t num_threads) {
  const int before = at::get_num_threads();
  at::set_num_threads(static_cast<int>(num_threads));
  std::mutex mutex;
  std::set<std::thread::id> seen;
  at::parallel_for(0, 64 * num_threads, 1, [&](int64_t, int64_t) {
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  at::set_num_threads(before);
  return static_cast<int64_t>(seen.size());
}

}  // namespace fastsft
