#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace fastsft {

// An error message names the expected value, the actual value, the location and a remedy.
//   user error     -> std::invalid_argument (ValueError in Python)
//   machine error  -> std::runtime_error    (RuntimeError in Python)
//   internal error -> std::logic_error      (RuntimeError that asks for a report)

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

// Throws std::logic_error if an internal invariant does not hold, which is never a user error.
#define FASTSFT_ASSERT(condition, ...)                                                           \
  do {                                                                                           \
    if (!(condition))                                                                            \
      throw std::logic_error(::fastsft::concat("internal error at ", __FILE__, ":", __LINE__,    \
                                               ": " #condition " " __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

namespace fastsft {

// An error of the disk or the operating system, with a complete message for the user.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fastsft
