#pragma once

#include <stdexcept>

namespace fastsft {

// The disk or the kernel refused; the message is for people and says all.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fastsft
