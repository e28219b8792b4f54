#include <algorithm>
#include <string_view>

#include "chat/transcript_labels.h"
#include "chat/turn_counts.h"

namespace fastsft {
namespace {

// FastChat's arithmetic for a transcript: the learned positions, and the position at which the
// arithmetic ends.
class Arithmetic {
 public:
  Arithmetic(const Tokenizer& tokenizer, const ChatTemplate& chat_template, std::string_view text,
             LabelBuffers& buffers)
      : tokenizer_(tokenizer),
        text_(text),
        stop_(chat_template.stop_token),
        mark_(chat_template.after_user + chat_template.before_assistant),
        counts_(tokenizer, text, buffers.tokens, stop_, buffers.part) {}

  void run() {
    size_t begin = 0;
    for (turns_ = 0;; ++turns_) {
      const size_t stop = text_.find(stop_, begin);
      const size_t end = std::min(stop, text_.size());
      is_over_ = is_over_ || begin == end || !add_turn(begin, end);
      if (stop == std::string_view::npos) return;
      begin = stop + stop_.size();
    }
  }

  int64_t position() const { return position_; }
  int64_t turns() const { return turns_; }
  // Returns the learned spans, cut to a row of `max_length` ids.
  std::vector<TokenSpan> take_learned(int64_t max_length) const {
    std::vector<TokenSpan> result;
    for (TokenSpan span : learned_) {
      span.end = static_cast<int32_t>(std::min<int64_t>(span.end, max_length));
      if (span.begin >= span.end) continue;
      if (!result.empty() && result.back().end >= span.begin) {
        result.back().end = std::max(result.back().end, span.end);
      } else {
        result.push_back(span);
      }
    }
    return result;
  }

 private:
  // Adds a turn's targets. Returns false unless `mark_`, the text in front of a reply, occurs
  // exactly once.
  bool add_turn(size_t begin, size_t end) {
    const std::string_view turn = text_.substr(begin, end - begin);
    const size_t mark = turn.find(mark_);
    if (mark == std::string_view::npos) return false;
    if (turn.find(mark_, mark + mark_.size()) != std::string_view::npos) return false;
    counts_.enter(begin, end);
    // `legacy` is read from the second turn on, because some tokenizers do not have it.
    const int64_t correction = turns_ != 0 && !tokenizer_.legacy() ? 1 : 0;
    const int64_t instruction = counts_.count_prefix(begin + mark + mark_.size()) - 2 - correction;
    const int64_t next = position_ + counts_.count_turn() - correction;
    learned_.push_back({static_cast<int32_t>(position_ + std::max<int64_t>(instruction, 0)),
                        static_cast<int32_t>(next)});
    position_ = next;
    return true;
  }

  const Tokenizer& tokenizer_;
  std::string_view text_;
  std::string stop_;
  std::string mark_;
  TurnCounts counts_;
  int64_t position_ = 1;
  int64_t turns_ = 0;
  bool is_over_ = false;
  std::vector<TokenSpan> learned_;
};

}  // namespace

Labels label_fastchat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                      const Transcript& transcript, int64_t max_length, int32_t pad_id,
                      LabelBuffers& buffers) {
  std::vector<Token>& tokens = buffers.tokens;
  tokens.clear();
  tokenizer.encode(transcript.text, SpecialText::kFind, tokens);
  const int64_t added = tokenizer.adds_bos() + tokenizer.adds_eos();
  const auto room = static_cast<size_t>(std::max<int64_t>(max_length - added, 0));
  const size_t kept = std::min(tokens.size(), room);
  Labels result;
  std::vector<int32_t>& ids = result.example.ids;
  ids.reserve(kept + added);
  if (tokenizer.adds_bos()) ids.push_back(tokenizer.named().bos);
  for (size_t i = 0; i < kept; ++i) ids.push_back(tokens[i].id);
  if (tokenizer.adds_eos()) ids.push_back(tokenizer.named().eos);
  result.truncated = static_cast<int64_t>(tokens.size()) + added > max_length;

  Arithmetic arithmetic(tokenizer, chat_template, transcript.text, buffers);
  arithmetic.run();
  const auto real = static_cast<int64_t>(ids.size()) - std::count(ids.begin(), ids.end(), pad_id);
  result.mismatch = {arithmetic.position(), real, arithmetic.turns()};
  result.dropped = arithmetic.position() < max_length && arithmetic.position() != real;
  if (result.dropped) return result;
  result.example.learned = arithmetic.take_learned(max_length);
  if (!result.example.learned.empty()) {
    const auto end = static_cast<size_t>(result.example.learned.back().end);
    if (end > ids.size()) ids.resize(end, pad_id);
  }
  return result;
}

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

// Finds the turn's tokens. Returns false unless the turn ends at a special token or at the end of
// the text.
bool TurnCounts::locate() {
  first_ = begin_ == 0 ? 0 : last_ + 1;
  last_ = first_;
  while (last_ < tokens_.size() && tokens_[last_].end <= end_) ++last_;
  if (end_ == text_.size()) return last_ == tokens_.size();
  return last_ < tokens_.size() && tokens_[last_].begin == end_ &&
         tokens_[last_].end == end_ + stop_.size() && tokenizer_.is_special(tokens_[last_].id);
}

// Computes the correction for a turn after the first, whose first word alone may have other tokens.
// Returns false if the correction cannot be computed.
bool TurnCounts::adjust_first_word() {
  adjustment_ = 0;
  if (begin_ == 0 || tokenizer_.prefixes_every_part()) return true;
  // The first word ends at a space that follows a non-space, or at the turn's end.
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
