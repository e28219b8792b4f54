#include "chat/turn_counts.h"

#include <algorithm>

namespace fastsft {

TurnCounts::TurnCounts(const Tokenizer& tokenizer, std::string_view text,
                       std::span<const Token> tokens, std::string_view stop,
                       std::vector<Token>& part)
    : tokenizer_(tokenizer),
      text_(text),
      tokens_(tokens),
      stop_(stop),
      part_(part),
      aligned_(tokenizer.cuts_before_spaces()) {}

int64_t TurnCounts::encode_alone(size_t begin, size_t end) const {
  part_.clear();
  tokenizer_.encode(text_.substr(begin, end - begin), SpecialText::kFind, part_);
  return static_cast<int64_t>(part_.size()) + tokenizer_.adds_bos() + tokenizer_.adds_eos();
}

// The turn's tokens; false when its end is not a special token's beginning or the text's end.
bool TurnCounts::locate() {
  first_ = begin_ == 0 ? 0 : last_ + 1;
  last_ = first_;
  while (last_ < tokens_.size() && tokens_[last_].end <= end_) ++last_;
  if (end_ == text_.size()) return last_ == tokens_.size();
  return last_ < tokens_.size() && tokens_[last_].begin == end_ &&
         tokens_[last_].end == end_ + stop_.size() && tokenizer_.is_special(tokens_[last_].id);
}

// A turn that is not first has other tokens when it does: only its first word differs.
bool TurnCounts::adjust_first_word() {
  adjustment_ = 0;
  if (begin_ == 0 || tokenizer_.prefixes_every_part()) return true;
  // The end of the first word: a space that follows a non-space, or the turn's end.
  const std::string_view up_to_end = text_.substr(0, end_);
  const size_t word = up_to_end.find_first_not_of(' ', begin_);
  const size_t cut = std::min(up_to_end.find(' ', word), end_);
  int64_t count = tokenizer_.adds_bos() + tokenizer_.adds_eos();
  for (size_t i = first_; i < last_ && tokens_[i].end <= cut; ++i, ++count) {
    if (tokenizer_.is_special(tokens_[i].id)) return false;
  }
  const size_t behind = first_ + count - tokenizer_.adds_bos() - tokenizer_.adds_eos();
  if (behind < last_ && tokens_[behind].begin < cut) return false;
  adjustment_ = encode_alone(begin_, cut) - count;
  return true;
}

void TurnCounts::enter(size_t begin, size_t end) {
  begin_ = begin;
  end_ = end;
  aligned_ = aligned_ && locate();
  derivable_ = aligned_ && adjust_first_word();
}

int64_t TurnCounts::count_turn() {
  if (!derivable_) return encode_alone(begin_, end_);
  return static_cast<int64_t>(last_ - first_) + adjustment_ + tokenizer_.adds_bos() +
         tokenizer_.adds_eos();
}

int64_t TurnCounts::count_prefix(size_t end) {
  if (!derivable_) return encode_alone(begin_, end);
  const size_t cut = end - 1;
  const auto turn = tokens_.subspan(first_, last_ - first_);
  const auto behind = std::partition_point(turn.begin(), turn.end(),
                                           [&](const Token& token) { return token.end <= cut; });
  const bool straddles = behind != turn.end() && behind->begin < cut;
  const bool after_special = behind != turn.begin() && tokenizer_.is_special((behind - 1)->id);
  if (straddles || after_special) return encode_alone(begin_, end);
  return (behind - turn.begin()) + 1 + adjustment_ + tokenizer_.adds_bos() + tokenizer_.adds_eos();
}

}  // namespace fastsft
