#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <cstring>

#include "core/utf8.h"

namespace fastsft {
namespace {

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
      return 0x10FFFF;  // no white space needs four bytes
  }
}

bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.text.size() > b.text.size();
  });
  for (const AddedToken& token : tokens_) begins_[static_cast<uint8_t>(token.text[0])] = true;
  if (std::count(begins_.begin(), begins_.end(), true) == 1) only_begin_ = tokens_[0].text[0];
}

bool SpecialTokens::strips() const {
  return std::any_of(tokens_.begin(), tokens_.end(),
                     [](const AddedToken& t) { return t.strips_left || t.strips_right; });
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (only_begin_) {
      at = text.find(*only_begin_, at);
      if (at == std::string_view::npos) break;
    } else if (!begins_[static_cast<uint8_t>(text[at])]) {
      continue;
    }
    for (const AddedToken& token : tokens_) {
      const size_t size = token.text.size();
      if (text.compare(at, size, token.text) == 0) return Match{at, at + size, &token};
    }
  }
  return std::nullopt;
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
