#include "core/start_threads.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <semaphore>
#include <system_error>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr int kMaxThreads = 8;
constexpr size_t kGrain = 16;  // indices that a thread takes at a time in parallel_for

}  // namespace

bool prepare_exceptions() {
  constexpr size_t kPlenty = 1024;  // more than the fatal allocation in __cxa_get_globals
  void* volatile const probe = std::malloc(kPlenty);
  if (probe == nullptr) return false;
  std::free(probe);
  // The probe and this result are volatile; otherwise the compiler would remove the calls.
  [[maybe_unused]] abi::__cxa_eh_globals* volatile const own = abi::__cxa_get_globals();
  return true;
}

namespace {

// A meeting point of started threads: no thread works, or allocates memory, until all have started.
struct Start {
  std::counting_semaphore<> reports{0};
  std::atomic<size_t> num_ready = 0;
  std::latch all{1};

  // Called by each started thread. Returns false if the thread cannot work.
  bool meet() {
    const bool is_ready = prepare_exceptions();
    num_ready += is_ready;
    reports.release();
    if (is_ready) all.wait();
    return is_ready;
  }

  // Called by the thread that started `count` threads. Returns how many threads will work.
  size_t release(size_t count) {
    for (size_t i = 0; i < count; ++i) reports.acquire();
    all.count_down();
    return num_ready;
  }
};

}  // namespace

std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& body) {
  std::vector<std::jthread> threads;
  std::shared_ptr<Start> start;
  try {
    start = std::make_shared<Start>();
    threads.reserve(count);
    while (threads.size() < count) {
      threads.emplace_back([start, body] {
        if (start->meet()) body();
      });
    }
  } catch (const std::system_error&) {  // EAGAIN: a limit, or no memory for the stack
  } catch (const std::bad_alloc&) {
  }
  if (start) start->release(threads.size());
  return threads;
}

int choose_threads(int wanted) {
  if (wanted > 0) return wanted;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

void parallel_for(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body) {
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

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& reason) {
  throw ThreadDenied(concat("cannot start a thread for ", name, ": ", reason,
                            "; allow more processes (ulimit -u, pids of the container) or more "
                            "memory (ulimit -v)"));
}

}  // namespace

std::thread start_needed_thread(const char* name, const std::function<void()>& body) {
  const auto start = std::make_shared<Start>();
  std::thread thread;
  try {
    thread = std::thread([start, body] {
      if (start->meet()) body();
    });
  } catch (const std::system_error& error) {
    refuse(name, error.code().message());
  }
  if (start->release(1) == 1) return thread;
  thread.join();
  refuse(name, std::generic_category().message(ENOMEM));
}

void require_threads(size_t count, const std::string& name) {
  std::latch release(1);
  std::atomic<size_t> num_running = 0;
  auto threads = start_threads(count, [&] {
    ++num_running;
    release.wait();
  });
  release.count_down();
  threads.clear();
  if (num_running < count) refuse(name, std::generic_category().message(EAGAIN));
}

}  // namespace fastsft
