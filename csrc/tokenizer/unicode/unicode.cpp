#include "tokenizer/unicode/unicode.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <string>

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

}  // namespace

void append_utf8(uint32_t code, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

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

}  // namespace fastsft
