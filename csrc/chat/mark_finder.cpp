#include "chat/mark_finder.h"

namespace fastsft {

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
