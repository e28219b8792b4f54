#include "storage/header_scanner.h"

#include <array>
#include <charconv>

#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

// Bytes that mean themselves in a string and are characters by themselves.
constexpr std::array<bool, 256> make_plain() {
  std::array<bool, 256> plain{};
  for (size_t byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}

constexpr std::array<bool, 256> kPlain = make_plain();

bool is_space(char sign) { return sign == ' ' || sign == '\t' || sign == '\r' || sign == '\n'; }
bool is_digit(char sign) { return sign >= '0' && sign <= '9'; }

void append_utf8(char32_t point, std::string& into) {
  const auto rest = [&](int shift) { into += static_cast<char>(0x80 | ((point >> shift) & 0x3F)); };
  if (point < 0x80) {
    into += static_cast<char>(point);
  } else if (point < 0x800) {
    into += static_cast<char>(0xC0 | (point >> 6));
    rest(0);
  } else if (point < 0x10000) {
    into += static_cast<char>(0xE0 | (point >> 12));
    rest(6), rest(0);
  } else {
    into += static_cast<char>(0xF0 | (point >> 18));
    rest(12), rest(6), rest(0);
  }
}

}  // namespace

HeaderScanner::HeaderScanner(std::string_view text, std::string where)
    : text_(text), where_(std::move(where)) {}

void HeaderScanner::fail() const {
  throw_invalid(where_, ": the header is not JSON at byte ", at_ + 1);
}

char HeaderScanner::peek() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

const char* HeaderScanner::kind() {
  const char sign = peek();
  if (is_digit(sign)) return "a number";
  switch (sign) {
    case '"':
      return "a string";
    case '{':
      return "an object";
    case '[':
      return "an array";
    case 't':
    case 'f':
      return "a boolean";
    case 'n':
      return "null";
    case '-':
      return "a negative number";
    default:
      fail();
  }
}

bool HeaderScanner::take_if(char sign) {
  if (peek() != sign) return false;
  ++at_;
  return true;
}

void HeaderScanner::take(char sign) {
  if (!take_if(sign)) fail();
}

void HeaderScanner::read_string(std::string& into) {
  take('"');
  into.clear();
  while (true) {
    const size_t begin = at_;
    while (at_ < text_.size() && kPlain[static_cast<unsigned char>(text_[at_])]) ++at_;
    into.append(text_, begin, at_ - begin);
    if (at_ == text_.size()) fail();
    if (text_[at_] == '"') break;
    if (text_[at_] == '\\') {
      read_escape(into);
    } else {
      read_multibyte(into);
    }
  }
  ++at_;
}

void HeaderScanner::read_escape(std::string& into) {
  constexpr std::string_view kSigns = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (++at_ == text_.size()) fail();
  const char sign = text_[at_];
  if (const size_t found = kSigns.find(sign); found != std::string_view::npos) {
    into += kMeanings[found];
    ++at_;
    return;
  }
  if (sign != 'u') fail();
  char32_t point = read_hex();
  if (point >= 0xDC00 && point < 0xE000) fail();
  if (point >= 0xD800 && point < 0xDC00) {
    if (text_.substr(at_, 2) != "\\u") fail();
    ++at_;
    const char32_t low = read_hex();
    if (low < 0xDC00 || low >= 0xE000) fail();
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(point, into);
}

// Four digits after the "u" that is next.
char32_t HeaderScanner::read_hex() {
  const std::string_view digits = text_.substr(++at_, 4);
  uint32_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() != 4 || error != std::errc() || stop != end) fail();
  at_ += 4;
  return value;
}

void HeaderScanner::read_multibyte(std::string& into) {
  const auto lead = static_cast<unsigned char>(text_[at_]);
  const std::string_view character = text_.substr(at_, utf8_char_size(lead));
  if (lead < 0x80 || find_invalid_utf8(character) != std::string_view::npos) fail();
  into += character;
  at_ += character.size();
}

void HeaderScanner::skip_digits() {
  const size_t begin = at_;
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  if (at_ == begin) fail();
}

std::optional<uint64_t> HeaderScanner::read_number() {
  const auto next_is = [&](char sign) { return at_ < text_.size() && text_[at_] == sign; };
  bool is_unsigned = peek() != '-';
  const size_t begin = at_;
  if (!is_unsigned) ++at_;
  if (next_is('0')) {
    ++at_;
  } else {
    skip_digits();
  }
  if (next_is('.')) {
    is_unsigned = false;
    ++at_;
    skip_digits();
  }
  if (next_is('e') || next_is('E')) {
    is_unsigned = false;
    ++at_;
    if (next_is('+') || next_is('-')) ++at_;
    skip_digits();
  }
  uint64_t value = 0;
  const auto parsed = std::from_chars(text_.data() + begin, text_.data() + at_, value);
  return is_unsigned && parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

void HeaderScanner::skip_literal() {
  peek();
  for (const std::string_view word : {"true", "false", "null"}) {
    if (text_.substr(at_, word.size()) == word) {
      at_ += word.size();
      return;
    }
  }
  fail();
}

void HeaderScanner::skip_scalar() {
  const char sign = peek();
  if (sign == '"') {
    read_string(passed_);
  } else if (sign == '-' || is_digit(sign)) {
    static_cast<void>(read_number());
  } else {
    skip_literal();
  }
}

void HeaderScanner::skip_key() {
  read_string(passed_);
  take(':');
}

bool HeaderScanner::skip_value(size_t max_depth) {
  std::string ends;  // the brackets that close what is open
  do {
    const char sign = peek();
    const bool opens = sign == '{' || sign == '[';
    if (!opens) {
      skip_scalar();
    } else {
      if (ends.size() == max_depth) return false;
      take(sign);
      ends += sign == '{' ? '}' : ']';
      if (peek() != ends.back()) {
        if (sign == '{') skip_key();
        continue;
      }
    }
    while (!ends.empty() && take_if(ends.back())) ends.pop_back();
    if (ends.empty()) break;
    take(',');
    if (ends.back() == '}') skip_key();
  } while (true);
  return true;
}

void HeaderScanner::finish() {
  peek();
  if (at_ < text_.size()) fail();
}

}  // namespace fastsft
