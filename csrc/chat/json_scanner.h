#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "chat/conversation.h"

namespace fastsft {

inline constexpr std::string_view kJsonSpace = " \n\t\r";

// "not JSON at byte 17: expected a value" or "invalid UTF-8 at byte 17".
class JsonFault : public std::invalid_argument {
 public:
  JsonFault(ReadFault kind, int64_t byte, const std::string& reason)
      : std::invalid_argument(reason), kind_(kind), byte_(byte) {}

  ReadFault kind() const { return kind_; }
  int64_t byte() const { return byte_; }

 private:
  ReadFault kind_;
  int64_t byte_;
};

// Walks JSON text value by value without building a tree. Accepts what Python's `json` accepts (NaN
// and Infinity included) and nothing else. Faults throw JsonFault.
class JsonScanner {
 public:
  static constexpr int kMaxDepth = 200;

  // `text` must outlive the scanner; its first byte counts as number `first_byte` and its values as
  // `depth` deep. `end` names where it ends, for messages.
  explicit JsonScanner(std::string_view text, int64_t first_byte = 0, int depth = 0,
                       const char* end = "the file");

  // The kind of the value that comes next, which is not consumed.
  ValueKind peek();

  // Containers: enter, then `next_item` or `next_key` until false.
  void enter_array();
  bool next_item();
  void enter_object();
  bool next_key(std::string& key);

  // Goes on inside a list whose items before `text` were read elsewhere.
  void resume_list(bool is_first) { is_first_ = is_first; }
  bool at_end() const { return at_ >= text_.size(); }

  void read_string(std::string& text);
  void skip();
  // Any value: strings with their text, the rest with kind and truth only.
  Value read_value();
  // The value as it is written.
  std::string_view read_raw();

  // Only white space is left.
  void expect_end();
  // Of the next unread byte, by the numbers of the file.
  int64_t byte() const { return first_byte_ + static_cast<int64_t>(at_); }

 private:
  [[noreturn]] void fail(const char* expected) const;
  void skip_space();
  char current() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void take(char character, const char* expected);
  void take_word(std::string_view word);
  void deepen();
  bool next_element(char closing, const char* expected);
  size_t find_string_part(size_t begin) const;
  void skip_string();
  void read_escape(std::string& text);
  uint32_t read_hex4();
  bool skip_number();

  std::string_view text_;
  int64_t first_byte_;
  const char* end_;
  size_t at_ = 0;
  int depth_;
  bool is_first_ = false;  // no element of the innermost container has been read
};

}  // namespace fastsft
