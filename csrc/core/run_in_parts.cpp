#include "core/run_in_parts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/start_threads.h"

namespace fastsft {
namespace {

constexpr int kMaxThreads = 8;
constexpr size_t kGrain = 16;  // what a thread takes at a time

}  // namespace

int choose_threads(int wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

void run_in_parts(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (size_t begin; (begin = next.fetch_add(kGrain)) < count;) {
        body(begin, std::min(begin + kGrain, count));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  const size_t parts = (count + kGrain - 1) / kGrain;
  const size_t wanted = std::min<size_t>(choose_threads(num_threads), parts);
  auto threads = start_threads(wanted > 0 ? wanted - 1 : 0, work);
  work();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace fastsft
