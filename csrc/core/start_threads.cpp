#include "core/start_threads.h"

#include <cerrno>
#include <latch>
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

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& reason) {
  throw ThreadDenied(concat("cannot start a thread for ", name, ": ", reason,
                            "; allow more processes (ulimit -u, pids of the container) or more "
                            "memory (ulimit -v)"));
}

}  // namespace

std::thread start_needed_thread(const char* name, const std::function<void()>& body) {
  try {
    return std::thread(body);
  } catch (const std::system_error& error) {
    refuse(name, error.code().message());
  }
}

void require_threads(size_t count, const std::string& name) {
  std::latch release(1);
  const auto threads = start_threads(count, [&] { release.wait(); });
  release.count_down();
  if (threads.size() < count) refuse(name, std::generic_category().message(EAGAIN));
}

}  // namespace fastsft
