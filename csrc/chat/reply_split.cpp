#include <algorithm>

#include "chat/record_pieces.h"
#include "core/error.h"

namespace fastsft {
namespace {

constexpr size_t kMostReplies = 1024;

// How many of the replies can be in a row: those after at most twice its tokens, each text alone. A
// template may strip texts, and tokens of neighbours may join.
size_t count_within(const Tokenizer& tokenizer, const std::vector<size_t>& ends, int64_t max_length,
                    const Conversation& conversation) {
  std::vector<Token> tokens;
  int64_t before = 0;
  size_t next = 0;
  for (size_t reply = 0; reply < ends.size(); ++reply) {
    for (; next < ends[reply]; ++next) {
      tokens.clear();
      tokenizer.encode(conversation.messages[next].value.text, SpecialText::kFind, tokens);
      before += static_cast<int64_t>(tokens.size());
    }
    if (before > 2 * max_length) return reply;
  }
  return ends.size();
}

Conversation up_to(const Conversation& whole, size_t end, size_t reply, size_t count) {
  Conversation part = without_messages(whole);
  if (!whole.id.empty()) part.id = concat(whole.id, "_", end);
  part.messages.assign(whole.messages.begin(), whole.messages.begin() + static_cast<long>(end) + 1);
  own_notes(part).split = concat("reply ", reply + 1, " of ", count, ", in a row of its own");
  own_notes(part).lost.clear();  // of the whole record, whose last piece says it
  own_notes(part).is_later_reply = reply > 0;
  return part;
}

}  // namespace

void split_replies(const DialogueBuilder& builder, const Tokenizer& tokenizer, int64_t max_length,
                   Conversation& conversation, std::vector<Conversation>& result) {
  const std::vector<size_t> ends =
      conversation.is_left_out ? std::vector<size_t>() : builder.reply_ends(conversation);
  if (ends.size() < 2) return result.push_back(std::move(conversation));
  if (ends.size() > kMostReplies) {
    return leave_out(conversation,
                     concat("each of its ", ends.size(),
                            " replies would be a row of its own; expected at most ", kMostReplies),
                     result);
  }
  const size_t count = ends.size();
  const size_t within = count_within(tokenizer, ends, max_length, conversation);
  const size_t before_last = std::min(within, count - 1);
  for (size_t reply = 0; reply < before_last; ++reply) {
    result.push_back(up_to(conversation, ends[reply], reply, count));
  }
  RecordNotes& notes = own_notes(conversation);
  notes.split = concat("reply ", count, " of ", count, ", in a row of its own");
  notes.is_later_reply = true;
  if (before_last + 1 < count) {
    notes.lost = concat("replies ", before_last + 1, " to ", count - 1,
                        " come after too much text for a row of ", max_length, " tokens");
  }
  if (!conversation.id.empty()) conversation.id = concat(conversation.id, "_", ends.back());
  result.push_back(std::move(conversation));
}

}  // namespace fastsft
