#include "chat/special_parts.h"

#include <algorithm>

#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

bool ends_with_beginning(std::string_view text, std::string_view special) {
  for (size_t size = std::min(text.size(), special.size() - 1); size > 0; --size) {
    if (text.ends_with(special.substr(0, size))) return true;
  }
  return false;
}

bool begins_with_end(std::string_view text, std::string_view special) {
  for (size_t size = std::min(text.size(), special.size() - 1); size > 0; --size) {
    if (text.starts_with(special.substr(special.size() - size))) return true;
  }
  return false;
}

}  // namespace

SpecialParts::SpecialParts(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_control(id)) continue;
    std::string text = tokenizer.token_text(id);
    if (text.size() > 1) specials_.push_back(std::move(text));
  }
}

bool SpecialParts::can_join(const std::vector<std::string_view>& texts) const {
  std::vector<std::string_view> cut;  // the texts as a template may strip them
  for (const std::string_view text : texts) cut.push_back(strip_right(strip_left(text)));
  const auto any = [&](const auto& test, const std::string& special) {
    return std::ranges::any_of(cut, [&](std::string_view text) { return test(text, special); });
  };
  return std::ranges::any_of(specials_, [&](const std::string& special) {
    return any(ends_with_beginning, special) && any(begins_with_end, special);
  });
}

MarkFinder::MarkFinder(const Tokenizer& tokenizer, const std::vector<std::string>& more) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_control(id)) add(tokenizer.token_text(id));
  }
  for (const std::string& mark : more) add(mark);
}

void MarkFinder::add(std::string mark) {
  if (mark.size() > 1) marks_[mark.substr(0, 2)].push_back(std::move(mark));
}

std::string_view MarkFinder::find(std::string_view text) const {
  for (const auto& [start, marks] : marks_) {
    for (size_t at = text.find(start); at != text.npos; at = text.find(start, at + 1)) {
      for (const std::string& mark : marks) {
        if (text.substr(at).starts_with(mark)) return mark;
      }
    }
  }
  return {};
}

}  // namespace fastsft
