#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fastsft {

// Allocates the memory that this thread needs to throw exceptions. Returns false if there is none.
// Threads call this before they work: otherwise the C++ library allocates at the first throw, and
// the process ends if that fails.
bool prepare_exceptions();

// Starts up to `count` threads that run `body` and share work with the caller. Fewer threads,
// because of a process or memory limit, are no error: the caller does the remaining work. `body`
// begins when all threads have started; it may throw.
std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& body);

// Calls `body(begin, end)` for parts of [0, count) on several threads and waits for all. Rethrows
// the first exception. `num_threads` 0 means the core count, at most eight.
void parallel_for(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body);

// Resolves a requested thread count: 0 means the core count, at most eight.
int choose_threads(int wanted);

// An error for a thread that the system denies, with a message for the user.
class ThreadDenied : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Starts a thread. Throws ThreadDenied, with `name`, if the system denies it.
std::thread start_needed_thread(const char* name, const std::function<void()>& body);

// Throws ThreadDenied, with `name`, unless the system can run `count` more threads at once. For
// libraries that end the process if they get no thread.
void require_threads(size_t count, const std::string& name);

}  // namespace fastsft
