#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fastsft {

// Allocates the memory that this thread needs to throw exceptions; false if there is none. The C++
// library would allocate it at the first throw, and glibc would end the process: threads call this
// before they work.
bool prepare_exceptions();

// Starts up to `count` threads that run `body` and share work with the caller. If a limit (of
// processes, of memory) allows fewer, that is no error: the caller does the rest. `body` begins
// when all threads have started; it may throw.
std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& body);

// Calls `body(begin, end)` for parts of [0, count) on several threads and waits for all. The first
// exception is thrown again here. `num_threads` 0 takes as many as the machine has cores, eight at
// most.
void parallel_for(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body);

// Resolves a requested number of threads: 0 is the number of cores, eight at most.
int choose_threads(int wanted);

// The system gives no thread; the message is for people.
class ThreadDenied : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Starts a thread. Throws ThreadDenied, with `name`, if the system denies it.
std::thread start_needed_thread(const char* name, const std::function<void()>& body);

// Throws ThreadDenied, with `name`, unless the system gives `count` threads at once now. For
// libraries that end the process if they do not get their threads.
void require_threads(size_t count, const std::string& name);

}  // namespace fastsft
