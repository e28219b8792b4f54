#include "tokenizer/byte_level/split_pattern.h"

#include <array>

#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100kRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_newline(char byte) { return byte == '\n' || byte == '\r'; }

// A text with its characters' classes.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(char_classes()) {}

  struct Char {
    CharClass char_class;
    uint32_t size;
  };
  Char at(size_t at) const {
    const DecodedChar c = decode_char(text_, at);
    return {static_cast<CharClass>(classes_[c.code]), c.size};
  }
  bool is(size_t at, CharClass char_class) const {
    return at < text_.size() && this->at(at).char_class == char_class;
  }
  size_t skip(size_t at, CharClass char_class) const {
    while (at < text_.size()) {
      const Char c = this->at(at);
      if (c.char_class != char_class) break;
      at += c.size;
    }
    return at;
  }

  // Applies the alternatives \s*[\r
  // ]+ (if `has_newlines`), \s+(?!\S) and \s+ in this order.
  size_t find_space_end(size_t begin, bool has_newlines) const {
    size_t end = begin;
    size_t last = begin;
    size_t newline_end = 0;
    while (end < text_.size()) {
      const Char c = at(end);
      if (c.char_class != CharClass::kSpace) break;
      if (is_newline(text_[end])) newline_end = end + 1;
      last = end;
      end += c.size;
    }
    if (has_newlines && newline_end != 0) return newline_end;
    return end == text_.size() || last == begin ? end : last;
  }

 private:
  std::string_view text_;
  const CodePointTable& classes_;
};

size_t find_gpt2_end(std::string_view text, size_t begin) {
  const Scanner scanner(text);
  const size_t at = text[begin] == ' ' ? begin + 1 : begin;
  const CharClass next = at < text.size() ? scanner.at(at).char_class : CharClass::kSpace;
  if (next == CharClass::kSpace) return scanner.find_space_end(begin, false);
  return scanner.skip(at, next);
}

size_t find_cl100k_end(std::string_view text, size_t begin, size_t digits) {
  const Scanner scanner(text);
  const auto [first, size] = scanner.at(begin);
  if (first == CharClass::kLetter) return scanner.skip(begin, CharClass::kLetter);
  if (first == CharClass::kNumber) {
    size_t end = begin;
    for (; digits > 0 && scanner.is(end, CharClass::kNumber); --digits) end += scanner.at(end).size;
    return end;
  }
  const size_t next = begin + size;
  if (!is_newline(text[begin]) && scanner.is(next, CharClass::kLetter)) {
    return scanner.skip(next, CharClass::kLetter);
  }
  if (first == CharClass::kOther || (text[begin] == ' ' && scanner.is(next, CharClass::kOther))) {
    size_t end = scanner.skip(next, CharClass::kOther);
    while (end < text.size() && is_newline(text[end])) ++end;
    return end;
  }
  return scanner.find_space_end(begin, true);
}

}  // namespace

size_t max_digits(SplitPattern pattern) {
  if (pattern == SplitPattern::kGpt2) return SIZE_MAX;
  return pattern == SplitPattern::kCl100k ? 3 : 1;
}

std::optional<SplitPattern> find_split_pattern(std::string_view regex) {
  if (regex == kGpt2Regex) return SplitPattern::kGpt2;
  if (regex == kCl100kRegex) return SplitPattern::kCl100k;
  if (regex == kQwen2Regex) return SplitPattern::kQwen2;
  return std::nullopt;
}

size_t find_contraction(SplitPattern pattern, std::string_view text, size_t at) {
  const bool folds = pattern != SplitPattern::kGpt2;
  const auto letter = [&](size_t i) {
    if (at + i >= text.size()) return '\0';
    const char c = text[at + i];
    return folds && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1);
  const char second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (second == 'e' && (first == 'r' || first == 'v')) return 3;
  if (first == 'l' && second == 'l') return 3;
  // U+017F, the long s, is an "s" if case is ignored.
  return folds && text.substr(at + 1).starts_with("\u017F") ? 3 : 0;
}

size_t find_split_end(SplitPattern pattern, std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t size = find_contraction(pattern, text, at); size != 0) return at + size;
  }
  if (pattern == SplitPattern::kGpt2) return find_gpt2_end(text, at);
  return find_cl100k_end(text, at, max_digits(pattern));
}

}  // namespace fastsft
