#include "chat/fastchat_check.h"

#include <algorithm>
#include <string>

#include "chat/call_text.h"
#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

const std::string kNoText;

RecordError fault(Issue remark, PythonError kind, int64_t message, std::string reason) {
  RecordError found;
  found.kind = kind;
  found.message = message;
  found.reason = std::move(reason);
  found.remark = remark;
  return found;
}

std::optional<RecordError> check_record(const Conversation& conversation) {
  using enum PythonError;
  const ValueKind kind = conversation.messages_kind;
  if (conversation.read_fault != ReadError::kNone) {
    const bool is_field = conversation.read_fault == ReadError::kBadField;
    RecordError found = fault(issue_of(conversation.read_fault), is_field ? kKeyError : kValueError,
                              -1, conversation.read_reason);
    found.always_stops = !is_field;
    return found;
  }
  if (conversation.kind != ValueKind::kObject) {
    return fault(Issue::kNotAnObject, kTypeError, -1,
                 concat("record is not an object: expected {\"conversations\": [...]}, got ",
                        describe(conversation.kind)));
  }
  const bool has_other_list =
      conversation.is_fastchats && conversation.shape == RecordShape::kMessages;
  if (has_other_list && !notes_of(conversation).hint.empty()) {
    return fault(Issue::kBadMessage, kKeyError, -1,
                 concat("a message has no \"from\" and no \"role\"", notes_of(conversation).hint));
  }
  if (has_other_list && conversation.messages_kind != ValueKind::kArray) {
    return fault(Issue::kNoConversations, kKeyError, -1,
                 concat("\"messages\" is ", describe(conversation.messages_kind),
                        "; expected a list of messages"));
  }
  const auto& messages = conversation.messages;
  const auto empty = std::ranges::find_if(messages, [](const Message& message) {
    return message.kind != ValueKind::kObject ||
           (message.value.kind == ValueKind::kMissing && !message.calls_tool);
  });
  if (has_other_list && empty != messages.end()) {
    return fault(
        Issue::kBadMessage, kKeyError, empty - messages.begin(),
        empty->kind == ValueKind::kObject ? "message has no \"content\"" : explain_kind(*empty));
  }
  if (has_other_list) {
    return fault(Issue::kNoConversations, kKeyError, -1,
                 "no \"conversations\"; a file of both is read with --mask_policy spans");
  }
  if (conversation.shape == RecordShape::kText) {
    return fault(Issue::kBadField, kKeyError, -1,
                 "\"text\" is no conversation; --mask_policy spans learns it as it is");
  }
  if (kind == ValueKind::kMissing) {
    return fault(Issue::kNoConversations, kKeyError, -1,
                 concat("no \"", list_name(conversation), "\"", notes_of(conversation).hint));
  }
  const bool sized = kind == ValueKind::kArray || kind == ValueKind::kString;
  if (sized && conversation.messages_empty)
    return fault(Issue::kEmptyConversation, kIndexError, -1, "empty conversation");
  if (kind != ValueKind::kArray) {
    return fault(Issue::kNoConversations, kind == ValueKind::kObject ? kKeyError : kTypeError, -1,
                 explain_list(conversation));
  }
  return std::nullopt;
}

// Returns true if a list with these names may use the field. `is_new`: the field is "role" or
// "content" rather than "from" or "value".
bool is_named_as(MessageNames names, bool is_new) {
  return names == MessageNames::kEither || is_new == (names == MessageNames::kRoleContent);
}

std::string unknown_role(const std::string& role) {
  std::string reason = concat("role \"", printable(role), "\" is not human or gpt");
  static const RoleNames roles(true, {});
  const auto known = roles.find(role);
  if (known == Role::kSystem) {
    reason += "; FastChat's system text is fixed, --mask_policy spans reads a record's own";
  } else if (known == Role::kTool || is_call_role(role)) {
    reason += "; FastChat has no tools, --mask_policy spans --template model reads them";
  }
  return reason;
}

// Finds the role's index (0 for user, 1 for assistant) or returns an error.
std::optional<RecordError> find_role(const FastchatRoles& roles, MessageNames names,
                                     const std::string& hint, const Message& message, int64_t index,
                                     int& role) {
  using enum PythonError;
  if (message.kind != ValueKind::kObject) {
    return fault(Issue::kBadMessage, kTypeError, index,
                 concat("message is ", describe(message.kind),
                        "; expected {\"from\": ..., \"value\": ...}"));
  }
  const Value& from = message.from;
  const bool wants_from = names == MessageNames::kFromValue;
  if (from.kind == ValueKind::kMissing || !is_named_as(names, message.named_role)) {
    return fault(Issue::kBadMessage, kKeyError, index,
                 concat("message has no \"", wants_from ? "from" : "role", "\"",
                        from.kind == ValueKind::kMissing ? hint : ""));
  }
  if (!from.is_text()) {
    const bool hashable = from.kind != ValueKind::kArray && from.kind != ValueKind::kObject;
    return fault(Issue::kUnknownRole, hashable ? kKeyError : kTypeError, index,
                 concat("role is ", describe(from.kind), "; expected \"human\" or \"gpt\""));
  }
  const auto named = (message.named_role ? roles.after_role : roles.after_from).find(from.text);
  if (named != Role::kUser && named != Role::kAssistant) {
    return fault(Issue::kUnknownRole, kKeyError, index, unknown_role(from.text));
  }
  role = named == Role::kAssistant;
  if (role == 1 && message.is_context) {
    return fault(Issue::kBadField, kKeyError, index,
                 "a reply of the prompt, which --mask_policy fastchat would learn; spans does not");
  }
  return std::nullopt;
}

std::optional<RecordError> check_order(const FastchatRoles& roles, const Conversation& conversation,
                                       size_t first) {
  const std::vector<Message>& messages = conversation.messages;
  const bool wants_value = conversation.names == MessageNames::kFromValue;
  for (size_t i = first; i < messages.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    int role = 0;
    if (auto found = find_role(roles, conversation.names, notes_of(conversation).hint, messages[i],
                               index, role)) {
      return found;
    }
    if (role != static_cast<int>((i - first) % 2)) {
      const char* name = role == 0 ? "human" : "gpt";
      return fault(
          Issue::kBrokenAlternation, PythonError::kAssertionError, index,
          concat("two messages of role ", name, " in a row; user and assistant must alternate"));
    }
    if (messages[i].value.kind == ValueKind::kMissing ||
        !is_named_as(conversation.names, messages[i].named_content)) {
      return fault(Issue::kBadMessage, PythonError::kKeyError, index,
                   concat("message has no \"", wants_value ? "value" : "content", "\""));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<RecordError> check_conversation(const Conversation& conversation,
                                              const FastchatRoles& roles, Turns& turns) {
  turns = Turns();
  if (auto found = check_record(conversation)) return found;
  int first_role = 0;
  const Message& head = conversation.messages.front();
  if (auto found =
          find_role(roles, conversation.names, notes_of(conversation).hint, head, 0, first_role))
    return found;
  turns.skipped_first = first_role != 0;
  const size_t first = turns.skipped_first ? 1 : 0;
  if (auto found = check_order(roles, conversation, first)) return found;
  std::optional<RecordError> surrogate;
  for (size_t i = first; i < conversation.messages.size(); ++i) {
    const Value& value = conversation.messages[i].value;
    const auto index = static_cast<int64_t>(i);
    const bool is_text = value.is_text() || (!conversation.is_fastchats && value.is_text_parts);
    if (value.is_true && !is_text) {
      return fault(Issue::kNotText, PythonError::kTypeError, index,
                   concat("text is ", describe(value.kind)));
    }
    turns.texts.push_back(is_text ? &value.text : &kNoText);
    if (!surrogate && find_invalid_utf8(value.text) != std::string_view::npos) {
      surrogate =
          fault(Issue::kLoneSurrogate, PythonError::kRuntimeError, index, "lone surrogate in text");
    }
  }
  return surrogate;
}

namespace {

// Returns true if any text contains `part`, after `around` is added on both sides.
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

Issue find_drop_reason(const ChatTemplate& chat_template, const Turns& turns) {
  const size_t count = turns.texts.size();
  if (count == 0) return Issue::kAssistantOnly;
  if (count % 2 == 1) return Issue::kEndsWithUser;
  // The spaces that the template writes around a message can complete the tag.
  const std::string tag = chat_template.after_user + chat_template.before_assistant;
  if (any_contains(turns, tag, " ")) return Issue::kEmbeddedRoleTag;
  if (any_contains(turns, chat_template.stop_token)) return Issue::kEmbeddedEos;
  if (any_contains(turns, "<unk>")) return Issue::kEmbeddedUnk;
  if (has_empty(turns, 0, count)) return Issue::kEmptyUser;
  if (turns.texts.back()->empty()) return Issue::kEmptyLastReply;
  return Issue::kCountMismatch;
}

std::vector<RecordIssue> find_notes(const Tokenizer& tokenizer, const Turns& turns,
                                    const Labels& labels) {
  std::vector<RecordIssue> notes;
  if (turns.skipped_first) {
    notes.push_back({Issue::kStartsWithAssistant, Outcome::kSalvaged, 0, ""});
  }
  if (has_empty(turns, 1, turns.texts.size() - std::min<size_t>(turns.texts.size(), 1))) {
    notes.push_back({Issue::kEmptyMiddleReply, Outcome::kNoted, -1, ""});
  }
  const auto& ids = labels.example.ids;
  if (tokenizer.adds_bos() && std::count(ids.begin(), ids.end(), tokenizer.named().bos) > 1) {
    notes.push_back({Issue::kEmbeddedBos, Outcome::kNoted, -1, ""});
  }
  if (!labels.truncated) return notes;
  if (labels.example.learned.empty()) {
    notes.push_back({Issue::kNoReplyLeft, Outcome::kUnlabelled, -1, ""});
  } else {
    notes.push_back({Issue::kReplyTruncated, Outcome::kTruncated, -1, ""});
  }
  return notes;
}

}  // namespace fastsft
