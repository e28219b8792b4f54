#include "core/json_scanner.h"

#include <utility>

#include "core/error.h"
#include "core/json_text.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

const char* describe(ValueKind kind) {
  switch (kind) {
    case ValueKind::kMissing:
      return "nothing";
    case ValueKind::kNull:
      return "null";
    case ValueKind::kFalse:
      return "false";
    case ValueKind::kTrue:
      return "true";
    case ValueKind::kNumber:
      return "a number";
    case ValueKind::kString:
      return "text";
    case ValueKind::kArray:
      return "a list";
    case ValueKind::kObject:
      return "an object";
  }
  return "something else";
}

JsonScanner::JsonScanner(std::string_view text, int64_t first_byte, int depth, const char* end,
                         JsonRules rules, int max_depth)
    : text_(text),
      first_byte_(first_byte),
      end_(end),
      depth_(depth),
      max_depth_(max_depth),
      is_strict_(rules == JsonRules::kStrict) {}

void JsonScanner::fail(const char* expected) const {
  const bool is_over = at_ >= text_.size();
  throw JsonFault(JsonFault::Kind::kSyntax, byte(),
                  concat("not JSON at byte ", byte(), ": expected ", expected,
                         is_over ? concat(", got the end of ", end_) : ""));
}

void JsonScanner::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

void JsonScanner::take(char character, const char* expected) {
  if (at_ == text_.size() || text_[at_] != character) fail(expected);
  ++at_;
}

void JsonScanner::take_word(std::string_view word) {
  if (text_.compare(at_, word.size(), word) != 0) fail("a value");
  at_ += word.size();
}

ValueKind JsonScanner::peek() {
  skip_space();
  switch (current()) {
    case '{':
      return ValueKind::kObject;
    case '[':
      return ValueKind::kArray;
    case '"':
      return ValueKind::kString;
    case 't':
      return ValueKind::kTrue;
    case 'f':
      return ValueKind::kFalse;
    case 'n':
      return ValueKind::kNull;
    default:
      break;
  }
  const char c = current();
  const bool is_word = !is_strict_ && (c == 'N' || c == 'I');
  if (!is_digit(c) && c != '-' && !is_word) fail("a value");
  return ValueKind::kNumber;
}

void JsonScanner::deepen() {
  if (++depth_ > max_depth_) {
    throw JsonFault(JsonFault::Kind::kDepth, byte(),
                    concat("not JSON at byte ", byte(), ": expected lists and objects at most ",
                           max_depth_, " deep, got one nested deeper"));
  }
  is_first_ = true;
}

void JsonScanner::enter_array() {
  take('[', "a list");
  deepen();
}

void JsonScanner::enter_object() {
  take('{', "an object");
  deepen();
}

bool JsonScanner::next_element(char closing, const char* expected) {
  skip_space();
  if (current() == closing && at_ < text_.size()) {
    ++at_;
    --depth_;
    is_first_ = false;
    return false;
  }
  if (!std::exchange(is_first_, false)) {
    take(',', expected);
    skip_space();
    if (current() == closing) fail("a value after the comma");
  }
  return true;
}

bool JsonScanner::next_item() { return next_element(']', "\",\" or \"]\""); }

bool JsonScanner::next_key(std::string& key) {
  if (!next_element('}', "\",\" or \"}\"")) return false;
  if (current() != '"') fail("a key in quotes");
  read_string(key);
  skip_space();
  take(':', "\":\"");
  return true;
}

// Returns where a string's part without escapes ends, and checks that the part is UTF-8.
size_t JsonScanner::find_string_part(size_t begin) const {
  bool has_wide = false;
  const size_t end =
      begin + find_string_special(text_.data() + begin, text_.size() - begin, &has_wide);
  if (!has_wide) return end;
  const size_t bad = find_invalid_utf8(text_.substr(begin, end - begin));
  if (bad == std::string_view::npos) return end;
  const auto at = first_byte_ + static_cast<int64_t>(begin + bad);
  throw JsonFault(JsonFault::Kind::kUtf8, at, concat("invalid UTF-8 at byte ", at));
}

uint32_t JsonScanner::read_hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = current();
    const char lower = static_cast<char>(c | 0x20);
    if (is_digit(c)) {
      value = value * 16 + static_cast<uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + static_cast<uint32_t>(lower - 'a' + 10);
    } else {
      fail("four hexadecimal digits");
    }
  }
  return value;
}

void JsonScanner::read_escape(std::string& text) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  ++at_;
  const size_t index = at_ < text_.size() ? kNames.find(text_[at_]) : std::string_view::npos;
  if (index != std::string_view::npos) {
    text += kMeanings[index];
    ++at_;
    return;
  }
  take('u', "an escape sequence");
  uint32_t c = read_hex4();
  if (c >= 0xD800 && c < 0xDC00 && text_.compare(at_, 2, "\\u") == 0) {
    const size_t before = at_;
    at_ += 2;
    const uint32_t low = read_hex4();
    if (low >= 0xDC00 && low < 0xE000) {
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    } else if (!is_strict_) {
      at_ = before;
    }
  }
  if (is_strict_ && c >= 0xD800 && c < 0xE000) fail("the other half of a surrogate pair");
  append_utf8(c, text);
}

void JsonScanner::read_string(std::string& text) {
  text.clear();
  take('"', "a string");
  while (true) {
    const size_t end = find_string_part(at_);
    text.append(text_, at_, end - at_);
    at_ = end;
    if (at_ == text_.size()) fail("the closing quote of a string");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') fail("no control character in a string (write it as an escape)");
    read_escape(text);
  }
  ++at_;
}

void JsonScanner::skip_string() {
  std::string escape;
  take('"', "a string");
  while (true) {
    at_ = find_string_part(at_);
    if (at_ == text_.size()) fail("the closing quote of a string");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') fail("no control character in a string (write it as an escape)");
    escape.clear();
    read_escape(escape);
  }
  ++at_;
}

// Consumes a number. Returns false if the number is zero.
bool JsonScanner::skip_number() {
  const bool is_negative = current() == '-';
  if (is_negative) ++at_;
  if (!is_strict_ && (current() == 'I' || (current() == 'N' && !is_negative))) {
    take_word(current() == 'N' ? "NaN" : "Infinity");
    return true;
  }
  bool is_true = false;
  const auto digits = [&](bool counts) {
    if (!is_digit(current())) fail("a digit");
    for (; is_digit(current()); ++at_) is_true |= counts && text_[at_] != '0';
  };
  if (current() == '0') {
    ++at_;
  } else {
    digits(true);
  }
  if (current() == '.') {
    ++at_;
    digits(true);
  }
  if (current() == 'e' || current() == 'E') {
    ++at_;
    if (current() == '+' || current() == '-') ++at_;
    digits(false);
  }
  return is_true;
}

Value JsonScanner::read_value() {
  Value value;
  value.kind = peek();
  switch (value.kind) {
    case ValueKind::kString:
      read_string(value.text);
      value.is_true = !value.text.empty();
      break;
    case ValueKind::kNumber:
      value.is_true = skip_number();
      break;
    case ValueKind::kTrue:
      take_word("true");
      value.is_true = true;
      break;
    case ValueKind::kFalse:
      take_word("false");
      break;
    case ValueKind::kNull:
      take_word("null");
      break;
    case ValueKind::kArray:
      for (enter_array(); next_item(); value.is_true = true) skip();
      break;
    case ValueKind::kObject: {
      std::string key;
      for (enter_object(); next_key(key); value.is_true = true) skip();
      break;
    }
    case ValueKind::kMissing:
      break;
  }
  return value;
}

void JsonScanner::skip() {
  if (peek() == ValueKind::kString) return skip_string();
  read_value();
}

std::string_view JsonScanner::read_raw() {
  skip_space();
  const size_t begin = at_;
  skip();
  return text_.substr(begin, at_ - begin);
}

void JsonScanner::expect_end() {
  skip_space();
  if (at_ != text_.size()) fail(concat("the end of ", end_).c_str());
}

}  // namespace fastsft
