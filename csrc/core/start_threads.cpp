#include "core/start_threads.h"

#include <new>
#include <system_error>

#include "core/error.h"

namespace fastsft {

std::vector<std::jthread> start_threads(size_t count, const std::function<void()>& body) {
  std::vector<std::jthread> threads;
  try {
    threads.reserve(count);
    while (threads.size() < count) threads.emplace_back(body);
  } catch (const std::system_error&) {  // EAGAIN: a limit, or no memory for the stack
  } catch (const std::bad_alloc&) {
  }
  return threads;
}

std::thread start_needed_thread(const char* name, const std::function<void()>& body) {
  try {
    return std::thread(body);
  } catch (const std::system_error& error) {
    throw ThreadDenied(concat("cannot start a thread for ", name, ": ", error.code().message(),
                              "; allow more processes (ulimit -u, pids of the container) or more "
                              "memory (ulimit -v)"));
  }
}

}  // namespace fastsft
