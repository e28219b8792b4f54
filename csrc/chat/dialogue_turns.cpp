#include <algorithm>

#include "chat/dialogue_work.h"
#include "core/error.h"

// The part of DialogueBuilder that selects the turns to keep and the replies to learn.

namespace fastsft {
namespace {

void cut_after_last_learned(std::vector<DialogueMessage>& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(),
                                 [](const DialogueMessage& message) { return message.is_learned; });
  if (last != messages.rend()) messages.erase(last.base(), messages.end());
}

}  // namespace

// Removes turns without a reply and turns with an empty text. A turn is a user message with the
// system messages directly before it and everything up to the next turn. A turn that is kept ends
// with its last reply. System messages are kept in any case, except after the last turn.
void DialogueBuilder::remove_incomplete_turns(Work& work) const {
  auto& messages = work.dialogue.messages;
  const auto is_system = [&](size_t i) { return messages[i].role == Role::kSystem; };
  size_t kept = 0;
  const auto keep = [&](size_t begin, size_t end) {
    std::copy(messages.begin() + begin, messages.begin() + end, messages.begin() + kept);
    kept += end - begin;
  };
  for (size_t begin = 0, end = 0; begin < messages.size(); begin = end) {
    size_t first = begin;
    while (first < messages.size() && is_system(first)) ++first;
    if (first == messages.size()) break;
    end = first + 1;
    while (end < messages.size() && messages[end].role != Role::kUser) ++end;
    while (end < messages.size() && is_system(end - 1)) --end;
    keep(begin, first);
    if (is_complete(work, first, end)) {
      size_t stop = end;
      while (messages[stop - 1].role != Role::kAssistant) --stop;
      keep(first, stop);
    }
  }
  while (kept > 0 && is_system(kept - 1)) --kept;
  messages.resize(kept);
}

// Returns true if a turn has a reply and all its texts. Reports the first part that is missing.
bool DialogueBuilder::is_complete(Work& work, size_t begin, size_t end) const {
  const auto& messages = work.dialogue.messages;
  size_t empty = begin;
  while (empty < end && !lacks_text(messages[empty])) ++empty;
  const DialogueMessage& message = messages[std::min(empty, end - 1)];
  if (empty < end) {
    const bool is_user = message.role == Role::kUser, calls = !is_user && message.has_call;
    const Issue reply = calls                    ? Issue::kToolCall
                        : end == messages.size() ? Issue::kEmptyLastReply
                                                 : Issue::kEmptyMiddleReply;
    return work.note(
        is_user ? Issue::kEmptyUser : reply, Outcome::kSalvaged, message.first,
        is_user ? "empty user text"
        : calls
            ? "a reply that calls a tool and has no text, and the template writes no calls: its "
              "turn is left out"
            : "empty reply");
  }
  if (message.role != Role::kAssistant) {
    work.note(Issue::kEndsWithUser, Outcome::kSalvaged, message.first,
              concat("ends with the ", name_of(message.role)));
  }
  return std::any_of(messages.begin() + begin, messages.begin() + end,
                     [](const DialogueMessage& each) { return each.role == Role::kAssistant; });
}

// Marks the replies as not learned that --learn and --learn_tool_calls leave out.
void DialogueBuilder::choose_replies(std::vector<DialogueMessage>& messages) const {
  size_t first = 0;
  if (learn_ == Learn::kLast && !messages.empty()) first = messages.size() - 1;
  if (learn_ == Learn::kAfterLastUser) {
    const auto is_user = [](const DialogueMessage& each) { return each.role == Role::kUser; };
    first = messages.rend() - std::find_if(messages.rbegin(), messages.rend(), is_user);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i < first || (messages[i].has_call && !learns_calls_)) messages[i].is_learned = false;
  }
}

void DialogueBuilder::choose_learned(Work& work) const {
  auto& messages = work.dialogue.messages;
  const bool ends_with_reply = notes_of(work.conversation).ends_with_reply;
  if (ends_with_reply || train_turns_ == TrainTurns::kEach) cut_after_last_learned(messages);
  if (train_turns_ == TrainTurns::kEach) {
    for (size_t i = 0; i + 1 < messages.size(); ++i) messages[i].is_learned = false;
  }
  if (std::ranges::any_of(messages, &DialogueMessage::is_learned)) return;
  const bool calls = std::ranges::any_of(
      work.findings, [](const RecordIssue& finding) { return finding.remark == Issue::kToolCall; });
  if (!messages.empty() && !calls) {
    work.exclude(Issue::kNotTrained,
                 learn_ == Learn::kMarked
                     ? "none of its replies has \"train\": true (--learn marked)"
                     : "none of its replies is to be learned");
  }
  messages.clear();
  for (RecordIssue& finding : work.findings) {
    if (finding.action == Outcome::kSalvaged) finding.action = Outcome::kExcluded;
  }
}

}  // namespace fastsft
