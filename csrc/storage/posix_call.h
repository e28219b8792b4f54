#pragma once

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"

namespace fastsft {

// FileError with operation, path and reason; a full disk also says how much is free.
[[noreturn]] void fail_call(const char* operation, const std::string& path, int error);

// What a network file system reports for a moment: worth another try.
inline bool is_transient(int error) { return error == EIO || error == ESTALE; }

// Repeats `call` while it is interrupted, and a few times after a transient error, each time a
// little later. `done(error)` tells whether a failure after such an error means that the call
// before it had worked. Returns the call's result, 0 when done.
template <typename Call, typename Done>
auto checked_call(const char* operation, const std::string& path, Call&& call, Done&& done)
    -> decltype(call()) {
  constexpr int kMaxRetries = 3;
  for (int retries = 0;;) {
    const auto result = call();
    if (result >= 0) return result;
    const int error = errno;
    if (error == EINTR) continue;
    if (retries > 0 && done(error)) return 0;
    if (!is_transient(error) || retries == kMaxRetries) fail_call(operation, path, error);
    std::this_thread::sleep_for(std::chrono::milliseconds(5 << (2 * retries++)));
  }
}

template <typename Call>
auto checked_call(const char* operation, const std::string& path, Call&& call) {
  return checked_call(operation, path, std::forward<Call>(call), [](int) { return false; });
}

}  // namespace fastsft
