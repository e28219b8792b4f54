#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "chat/conversation.h"

namespace fastsft {

// Walks JSON text value by value without building a tree. Accepts what Python's `json` accepts (NaN
// and Infinity included) and nothing else. Faults throw std::invalid_argument
// "<where>: not JSON at byte <k>: expected <what>" or "<where>: invalid UTF-8 at byte <k>".
class JsonScanner {
 public:
  static constexpr int kMaxDepth = 200;

  // `text` must outlive the scanner.
  JsonScanner(std::string_view text, std::string where);

  // The kind of the value that comes next, which is not consumed.
  ValueKind peek();

  // Containers: enter, then `next_item` or `next_key` until false.
  void enter_array();
  bool next_item();
  void enter_object();
  bool next_key(std::string& key);

  void read_string(std::string& text);
  void skip();
  // Any value: strings with their text, the rest with kind and truth only.
  Value read_value();
  // The value as it is written.
  std::string_view read_raw();

  // Only white space is left.
  void expect_end();
  size_t position() const { return at_; }

 private:
  [[noreturn]] void fail(const char* expected) const;
  void skip_space();
  char current() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void take(char character, const char* expected);
  void take_word(std::string_view word);
  void deepen();
  bool next_element(char closing, const char* expected);
  size_t find_string_special(size_t from) const;
  void check_utf8(size_t begin, size_t end) const;
  void read_escape(std::string& text);
  uint32_t read_hex4();
  bool skip_number();

  std::string_view text_;
  std::string where_;
  size_t at_ = 0;
  int depth_ = 0;
  bool is_first_ = false;  // no element of the innermost container has been read
};

}  // namespace fastsft
