#include "checkpoint/write_part.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <functional>

#include "checkpoint/model_ranges.h"
#include "checkpoint/training_state.h"
#include "core/start_threads.h"

namespace fastsft {
namespace {

constexpr int kNice = 10;

void run_all(const std::vector<std::function<void()>>& jobs, Priority priority) {
  std::vector<std::exception_ptr> failures(jobs.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < jobs.size();) {
      try {
        jobs[i]();
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  auto threads = start_threads(jobs.size(), [&] {
    if (priority == Priority::kLow) {
      // On Linux a priority belongs to the thread; that it cannot be lowered is no reason to fail.
      const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
      static_cast<void>(::setpriority(PRIO_PROCESS, thread, kNice));
    }
    work();
  });
  threads.clear();
  work();  // what no thread has done: there were none, or they had no memory to begin
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace

WrittenPart write_part(FileSystem& file_system, const std::string& directory, const StatePart& part,
                       const ModelFilePlan& plan, bool with_state, Priority priority) {
  WrittenPart written;
  std::vector<std::function<void()>> jobs;
  jobs.emplace_back(
      [&] { written.ranges = write_model_ranges(file_system, directory, plan, part); });
  if (with_state) {
    jobs.emplace_back(
        [&] { written.files.push_back(save_training_state(file_system, part, directory)); });
  }
  run_all(jobs, priority);
  return written;
}

}  // namespace fastsft
