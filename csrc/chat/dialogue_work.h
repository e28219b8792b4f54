#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/call_ids.h"
#include "chat/dialogue_builder.h"

namespace fastsft {

// The state while a dialogue is built from a record.
struct DialogueWork {
  const Conversation& conversation;
  Dialogue& dialogue;
  std::vector<RecordIssue>& findings;
  // Text of the dialogue's last message, if messages were joined to it.
  std::string* joined = nullptr;
  // Rare fields of the dialogue's last reply, if a separate message with a call was joined to it.
  std::optional<MessageExtras> joined_extras{};
  std::optional<CallIds> ids{};  // set if the template needs call ids
  bool skipped_first = false;
  bool has_two_systems = false;

  bool note(Issue remark, Outcome action, size_t index, std::string reason) {
    findings.push_back({remark, action, static_cast<int64_t>(index), std::move(reason)});
    return false;
  }
  bool stop(Issue remark, size_t index, std::string reason) {
    return note(remark, Outcome::kSalvaged, index, std::move(reason));
  }
  bool exclude(Issue remark, std::string reason) {
    findings.push_back({remark, Outcome::kExcluded, -1, std::move(reason)});
    return false;
  }
  // Returns what the train marks say about a message. `needs_mark`: without a mark it is not
  // learned.
  bool is_trained(size_t index, bool needs_mark) const {
    const ValueKind own = conversation.messages[index].train;
    const bool says_nothing = own == ValueKind::kMissing || own == ValueKind::kNull;
    const ValueKind mark = says_nothing ? conversation.train : own;
    return needs_mark ? mark == ValueKind::kTrue : mark != ValueKind::kFalse;
  }
  const MessageExtras& extras_of(size_t index) const {
    static const MessageExtras none;
    const auto& extras = conversation.messages[index].extras;
    return extras ? *extras : none;
  }
  // Returns the last message that is not a system message, or null.
  const DialogueMessage* last_speaker() const {
    const auto& messages = dialogue.messages;
    const auto speaks = [](const DialogueMessage& each) { return each.role != Role::kSystem; };
    const auto last = std::ranges::find_if(messages.rbegin(), messages.rend(), speaks);
    return last == messages.rend() ? nullptr : &*last;
  }
  std::string_view own_text(std::string text) {
    return dialogue.owned.emplace_back(std::move(text));
  }
  void join(std::string_view text, size_t index) {
    DialogueMessage& last = dialogue.messages.back();
    last.last = index;
    if (joined == nullptr) joined = &dialogue.owned.emplace_back(last.text);
    joined->append("\n\n").append(text);
    last.text = *joined;
  }
};

}  // namespace fastsft
