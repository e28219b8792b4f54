#include "tokenizer/unicode/unicode.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <string>

#include "core/utf8.h"
#include "tokenizer/unicode/unicode_tables.h"

namespace fastsft {
namespace {

struct ValuedRanges {
  std::span<const CodePointRange> ranges;
  uint8_t value;
};

std::vector<CodePointTable::Range> list_ranges(std::initializer_list<ValuedRanges> parts) {
  std::vector<CodePointTable::Range> all;
  for (const auto& [ranges, value] : parts) {
    for (const CodePointRange& range : ranges) all.push_back({range.first, range.last, value});
  }
  return all;
}

uint32_t decode_one(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
  switch (bytes.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return 0x10FFFF;  // no white space has four bytes
  }
}

bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace

CodePointTable::CodePointTable(const std::vector<Range>& ranges) {
  std::vector<uint8_t> all(0x110000);
  for (const Range& range : ranges) {
    std::fill(all.begin() + range.first, all.begin() + range.last + 1, range.value);
  }
  std::map<std::string_view, uint32_t> known;
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const auto* values = all.data() + block * 256;
    const std::string_view key(reinterpret_cast<const char*>(values), 256);
    const auto [at, is_new] = known.emplace(key, static_cast<uint32_t>(values_.size()));
    if (is_new) values_.insert(values_.end(), values, values + 256);
    blocks_[block] = at->second;
  }
}

const CodePointTable& char_classes() {
  static const CodePointTable table(
      list_ranges({{kLetterRanges, static_cast<uint8_t>(CharClass::kLetter)},
                   {kNumberRanges, static_cast<uint8_t>(CharClass::kNumber)},
                   {kSpaceRanges, static_cast<uint8_t>(CharClass::kSpace)}}));
  return table;
}

const CodePointTable& word_chars() {
  static const CodePointTable table(list_ranges({{kWordRanges, 1}}));
  return table;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    size_t at = text.size() - 1;
    while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
    if (!is_python_space(decode_one(text.substr(at)))) break;
    text = text.substr(0, at);
  }
  return text;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const size_t size = utf8_char_size(static_cast<unsigned char>(text[0]));
    if (!is_python_space(decode_one(text.substr(0, size)))) break;
    text.remove_prefix(size);
  }
  return text;
}

}  // namespace fastsft
