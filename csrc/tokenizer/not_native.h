#pragma once

#include <stdexcept>
#include <string>

namespace fastsft {

// A tokenizer that is sound but not one that fastsft reproduces exactly: the library that it was
// made for must run it. The message says what was met, as in `the normalizer "Lowercase"`.
class NotNative : public std::invalid_argument {
 public:
  explicit NotNative(const std::string& what) : std::invalid_argument(what) {}
};

}  // namespace fastsft
