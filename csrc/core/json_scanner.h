#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fastsft {

inline constexpr std::string_view kJsonSpace = " \n\t\r";

enum class ValueKind { kMissing, kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

// Returns a description for messages to people: "a number", "text", "nothing".
const char* describe(ValueKind kind);

// A JSON value as labels need it: its kind, its truth value in Python, and the text of a string.
// The text is UTF-8, except that a lone surrogate escape becomes three bytes, which UTF-8 forbids.
struct Value {
  ValueKind kind = ValueKind::kMissing;
  bool is_true = false;
  // True for a list whose items all are {"type": "text", "text": "..."}; then `text` is their
  // joined text. For other lists `text` is the "type" of the first different item ("image_url").
  bool is_text_parts = false;
  std::string text;

  bool is_text() const { return kind == ValueKind::kString; }
};

// An error in JSON text: "not JSON at byte 17: expected a value" or "invalid UTF-8 at byte 17".
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

// kPython: the syntax of Python's `json`, with NaN, Infinity and lone surrogates. kStrict: RFC
// 8259.
enum class JsonRules { kPython, kStrict };

// Walks JSON text value by value without building a tree, because a file may have hundreds of
// megabytes. Throws JsonFault for bad JSON.
class JsonScanner {
 public:
  static constexpr int kMaxDepth = 200;

  // `text` must outlive the scanner. Its first byte has the number `first_byte` in messages, and
  // its values are nested `depth` deep. `end` names the text's end in messages.
  explicit JsonScanner(std::string_view text, int64_t first_byte = 0, int depth = 0,
                       const char* end = "the file", JsonRules rules = JsonRules::kPython,
                       int max_depth = kMaxDepth);

  // Returns the kind of the next value without consuming the value.
  ValueKind peek();

  // Enter a container; then call `next_item` or `next_key` until false.
  void enter_array();
  bool next_item();
  void enter_object();
  bool next_key(std::string& key);

  // Continues inside a list; `is_first` is false if items before `text` were read already.
  void resume_list(bool is_first) { is_first_ = is_first; }
  bool at_end() const { return at_ >= text_.size(); }
  // Returns the next unread byte; NUL at the end.
  char current() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void read_string(std::string& text);
  void skip();
  // Reads any value. Strings get their text, other values only kind and truth value.
  Value read_value();
  // Returns the value's source text.
  std::string_view read_raw();

  // Throws JsonFault unless only white space is left.
  void expect_end();
  // Returns the position of the next unread byte in the file.
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
  bool is_first_ = false;  // nothing of the innermost container has been read
};

}  // namespace fastsft
