#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fastsft {

// Errors say: expected, got, where, and the way out.
//   the user's fault    -> std::invalid_argument (ValueError in Python)
//   the machine's fault -> std::runtime_error    (RuntimeError in Python)
//   our fault           -> std::logic_error      (RuntimeError that asks for a report)

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <typename... Parts>
[[noreturn]] void throw_invalid(const Parts&... parts) {
  throw std::invalid_argument(concat(parts...));
}

template <typename... Parts>
[[noreturn]] void throw_runtime(const Parts&... parts) {
  throw std::runtime_error(concat(parts...));
}

template <typename... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) throw_invalid(parts...);
}

}  // namespace fastsft

// A broken promise inside fastsft, never the user's fault.
#define FASTSFT_ASSERT(condition, ...)                                                           \
  do {                                                                                           \
    if (!(condition))                                                                            \
      throw std::logic_error(::fastsft::concat("internal error at ", __FILE__, ":", __LINE__,    \
                                               ": " #condition " " __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

namespace fastsft {

// A failure of the disk or the kernel, with a complete message for the user.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fastsft
