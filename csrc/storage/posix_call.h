#pragma once

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"

namespace fastsft {

// Throws FileError with operation, path and reason; for a full disk also with the free bytes.
[[noreturn]] void fail_call(const char* operation, const std::string& path, int error);

// Returns true for errors that a network file system may report temporarily, so that a retry can
// help.
inline bool is_transient(int error) { return error == EIO || error == ESTALE; }

// Calls `call` again while it is interrupted, and up to three times after a transient error, with
// growing delays. `done(error)`: true if this error of a retry means that the first attempt had
// succeeded. Returns the result of `call`, or 0 if `done` returned true.
template <typename Call, typename Done>
auto checked_call(const char* operation, const std::string& path, Call&& call,
                  Done&& done) -> decltype(call()) {
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
