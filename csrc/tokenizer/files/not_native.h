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

// The begin of a file's own words, for such a message.
inline std::string in_quotes(const std::string& text) { return "\"" + text.substr(0, 200) + "\""; }

}  // namespace fastsft
