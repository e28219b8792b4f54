#pragma once

#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace fastsft {

// Gives this thread what its exceptions need; false where there is no memory for it. The C++
// library asks for it at the first throw, and glibc then ends the process: threads do this before
// they work.
bool prepare_exceptions();

// Threads that share work with their caller: as many of `count` as the system gives, each of which
// runs `body`. A limit (of processes, of memory) makes fewer of them and is no error: the caller
// does its share, and theirs. `body` begins when all were started and can throw.
std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& body);

// Calls `body(begin, end)` for parts of [0, count) on several threads and waits for all. The first
// exception is thrown again here. `num_threads` 0 takes as many as the machine has cores, eight at
// most.
void run_in_parts(size_t count, int num_threads, const std::function<void(size_t, size_t)>& body);

// The number of threads that `wanted` means.
int choose_threads(int wanted);

// The system gives no thread; the message is for people.
class ThreadDenied : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A thread that is needed. ThreadDenied, with `name`, where the system gives none.
std::thread start_needed_thread(const char* name, const std::function<void()>& body);

// ThreadDenied, with `name`, unless the system gives `count` threads at once now. For code of
// others that ends the process where it does not get them.
void require_threads(size_t count, const std::string& name);

}  // namespace fastsft
