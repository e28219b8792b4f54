#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fastsft {

inline constexpr std::string_view kJsonSpace = " \n\t\r";

enum class ValueKind { kMissing, kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

// "a number", "text", "nothing": for messages to people.
const char* describe(ValueKind kind);

// A JSON value as far as labels need it: its kind, whether Python calls it true, and a string's
// text. The text is UTF-8, but a lone surrogate escape is in it as three bytes that UTF-8
// forbids.
struct Value {
  ValueKind kind = ValueKind::kMissing;
  bool is_true = false;
  // A list whose items all are {"type": "text", "text": "..."}: `text` is theirs, joined. Of any
  // other list, `text` is the "type" of the first item that is none of these ("image_url").
  bool is_text_parts = false;
  std::string text;

  bool is_text() const { return kind == ValueKind::kString; }
};

// "not JSON at byte 17: expected a value" or "invalid UTF-8 at byte 17".
class JsonFault : public std::invalid_argument {
 public:
  enum class Kind { kSyntax, kDepth, kUtf8 };
  JsonFault(Kind kind, int64_t byte, const std::string& reason)
      : std::invalid_argument(reason), kind_(kind), byte_(byte) {}

  Kind kind() const { return kind_; }
  int64_t byte() const { return byte_; }

 private:
  Kind kind_;
  int64_t byte_;
};

// kPython: what Python's `json` reads, with NaN, Infinity and lone surrogates. kStrict: RFC 8259.
enum class JsonRules { kPython, kStrict };

// Walks JSON text value by value without building a tree: a file may have a hundred megabytes.
// Faults throw JsonFault.
class JsonScanner {
 public:
  static constexpr int kMaxDepth = 200;

  // `text` must outlive the scanner; its first byte counts as number `first_byte` and its values as
  // `depth` deep. `end` names where it ends, for messages.
  explicit JsonScanner(std::string_view text, int64_t first_byte = 0, int depth = 0,
                       const char* end = "the file", JsonRules rules = JsonRules::kPython,
                       int max_depth = kMaxDepth);

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
  // The next unread byte; NUL at the end.
  char current() const { return at_ < text_.size() ? text_[at_] : '\0'; }

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
  int depth_, max_depth_;
  bool is_strict_;
  bool is_first_ = false;  // no element of the innermost container has been read
};

}  // namespace fastsft
