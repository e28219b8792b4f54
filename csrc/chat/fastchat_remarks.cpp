#include "chat/fastchat_check.h"

#include <algorithm>
#include <string>

namespace fastsft {
namespace {

// Whether a text has `part` in it, when `around` is put before and after it.
bool any_contains(const Turns& turns, const std::string& part, const std::string& around = "") {
  return std::any_of(turns.texts.begin(), turns.texts.end(), [&](const std::string* text) {
    if (around.empty()) return text->find(part) != std::string::npos;
    return (around + *text + around).find(part) != std::string::npos;
  });
}

bool has_empty(const Turns& turns, size_t first, size_t end) {
  for (size_t i = first; i < end; i += 2) {
    if (turns.texts[i]->empty()) return true;
  }
  return false;
}

}  // namespace

Remark find_drop_reason(const ChatTemplate& chat_template, const Turns& turns) {
  const size_t count = turns.texts.size();
  if (count == 0) return Remark::kAssistantOnly;
  if (count % 2 == 1) return Remark::kEndsWithUser;
  // The template's own spaces around a message can complete the tag.
  const std::string tag = chat_template.after_user + chat_template.before_assistant;
  if (any_contains(turns, tag, " ")) return Remark::kEmbeddedRoleTag;
  if (any_contains(turns, chat_template.stop_token)) return Remark::kEmbeddedEos;
  if (any_contains(turns, "<unk>")) return Remark::kEmbeddedUnk;
  if (has_empty(turns, 0, count)) return Remark::kEmptyUser;
  if (turns.texts.back()->empty()) return Remark::kEmptyLastReply;
  return Remark::kCountMismatch;
}

std::vector<Finding> find_notes(const Tokenizer& tokenizer, const Turns& turns,
                                const Labels& labels) {
  std::vector<Finding> notes;
  if (turns.skipped_first) {
    notes.push_back({Remark::kStartsWithAssistant, Action::kSalvaged, 0, ""});
  }
  if (has_empty(turns, 1, turns.texts.size() - std::min<size_t>(turns.texts.size(), 1))) {
    notes.push_back({Remark::kEmptyMiddleReply, Action::kNoted, -1, ""});
  }
  const auto& ids = labels.example.ids;
  if (tokenizer.adds_bos() && std::count(ids.begin(), ids.end(), tokenizer.named().bos) > 1) {
    notes.push_back({Remark::kEmbeddedBos, Action::kNoted, -1, ""});
  }
  if (!labels.truncated) return notes;
  if (labels.example.learned.empty()) {
    notes.push_back({Remark::kNoReplyLeft, Action::kUnlabelled, -1, ""});
  } else {
    notes.push_back({Remark::kReplyTruncated, Action::kTruncated, -1, ""});
  }
  return notes;
}

}  // namespace fastsft
