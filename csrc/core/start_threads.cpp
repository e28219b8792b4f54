#include "core/start_threads.h"

#include <cxxabi.h>

#include <cerrno>
#include <latch>
#include <memory>
#include <new>
#include <semaphore>
#include <system_error>

#include "core/error.h"

namespace fastsft {

// Declared without side effects: an unused result would be a call that is left out.
void prepare_exceptions() {
  [[maybe_unused]] abi::__cxa_eh_globals* volatile const own = abi::__cxa_get_globals();
}

namespace {

// None begins its work before all can throw.
struct Start {
  std::counting_semaphore<> prepared{0};
  std::latch all{1};

  void meet() {
    prepare_exceptions();
    prepared.release();
    all.wait();
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
        start->meet();
        body();
      });
    }
  } catch (const std::system_error&) {  // EAGAIN: a limit, or no memory for the stack
  } catch (const std::bad_alloc&) {
  }
  for (size_t i = 0; i < threads.size(); ++i) start->prepared.acquire();
  if (start) start->all.count_down();
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
    return std::thread([body] {
      prepare_exceptions();
      body();
    });
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
