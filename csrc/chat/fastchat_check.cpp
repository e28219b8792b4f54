#include "chat/fastchat_check.h"

#include "core/error.h"
#include "core/utf8.h"

namespace fastsft {
namespace {

const std::string kNoText;

DataFault fault(Remark remark, FaultKind kind, int64_t message, std::string reason) {
  DataFault found;
  found.kind = kind;
  found.message = message;
  found.reason = std::move(reason);
  found.remark = remark;
  return found;
}

std::optional<DataFault> check_record(const Conversation& conversation) {
  using enum FaultKind;
  const ValueKind kind = conversation.messages_kind;
  if (conversation.read_fault != ReadFault::kNone) {
    DataFault found = fault(
        conversation.read_fault == ReadFault::kNotJson ? Remark::kNotJson : Remark::kInvalidUtf8,
        kValueError, -1, conversation.read_reason);
    found.always_stops = true;
    return found;
  }
  if (conversation.kind != ValueKind::kObject) {
    return fault(Remark::kNotAnObject, kTypeError, -1,
                 concat("record is not an object: expected {\"conversations\": [...]}, got ",
                        describe(conversation.kind)));
  }
  if (conversation.shape == RecordShape::kMessages) {
    return fault(Remark::kNoConversations, kKeyError, -1,
                 "no \"conversations\"; \"messages\" needs --mask_policy spans");
  }
  if (kind == ValueKind::kMissing)
    return fault(Remark::kNoConversations, kKeyError, -1, "no \"conversations\"");
  const bool sized = kind == ValueKind::kArray || kind == ValueKind::kString;
  if (sized && conversation.messages_empty)
    return fault(Remark::kEmptyConversation, kIndexError, -1, "empty conversation");
  if (kind != ValueKind::kArray) {
    return fault(Remark::kNoConversations, kind == ValueKind::kObject ? kKeyError : kTypeError, -1,
                 concat("\"conversations\" is ", describe(kind), "; expected a list of messages"));
  }
  return std::nullopt;
}

std::string unknown_role(const std::string& role) {
  std::string reason = concat("role \"", printable(role), "\" is not human or gpt");
  if (role == "system") reason += "; the system text of --mask_policy fastchat is fixed";
  return reason;
}

// The role's index, user 0 and assistant 1, or a fault.
std::optional<DataFault> find_role(const RoleNames& roles, const Message& message, int64_t index,
                                   int& role) {
  using enum FaultKind;
  if (message.kind != ValueKind::kObject) {
    return fault(Remark::kBadMessage, kTypeError, index,
                 concat("message is ", describe(message.kind),
                        "; expected {\"from\": ..., \"value\": ...}"));
  }
  const Value& from = message.from;
  if (from.kind == ValueKind::kMissing || message.named_role)
    return fault(Remark::kBadMessage, kKeyError, index, "message has no \"from\"");
  if (!from.is_text()) {
    const bool hashable = from.kind != ValueKind::kArray && from.kind != ValueKind::kObject;
    return fault(Remark::kUnknownRole, hashable ? kKeyError : kTypeError, index,
                 concat("role is ", describe(from.kind), "; expected \"human\" or \"gpt\""));
  }
  const auto named = roles.find(from.text);
  if (named != Role::kUser && named != Role::kAssistant) {
    return fault(Remark::kUnknownRole, kKeyError, index, unknown_role(from.text));
  }
  role = named == Role::kAssistant;
  return std::nullopt;
}

std::optional<DataFault> check_order(const RoleNames& roles, const std::vector<Message>& messages,
                                     size_t first) {
  for (size_t i = first; i < messages.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    int role = 0;
    if (auto found = find_role(roles, messages[i], index, role)) return found;
    if (role != static_cast<int>((i - first) % 2)) {
      const char* name = role == 0 ? "human" : "gpt";
      return fault(
          Remark::kBrokenAlternation, FaultKind::kAssertionError, index,
          concat("two messages of role ", name, " in a row; user and assistant must alternate"));
    }
    if (messages[i].value.kind == ValueKind::kMissing || messages[i].named_content) {
      return fault(Remark::kBadMessage, FaultKind::kKeyError, index, "message has no \"value\"");
    }
  }
  return std::nullopt;
}

std::optional<DataFault> take_texts(const std::vector<Message>& messages, size_t first,
                                    Turns& turns) {
  std::optional<DataFault> surrogate;
  for (size_t i = first; i < messages.size(); ++i) {
    const Value& value = messages[i].value;
    const auto index = static_cast<int64_t>(i);
    if (value.is_true && !value.is_text()) {
      return fault(Remark::kNotText, FaultKind::kTypeError, index,
                   concat("text is ", describe(value.kind)));
    }
    turns.texts.push_back(value.is_text() ? &value.text : &kNoText);
    if (!surrogate && find_invalid_utf8(value.text) != std::string_view::npos) {
      surrogate =
          fault(Remark::kLoneSurrogate, FaultKind::kRuntimeError, index, "lone surrogate in text");
    }
  }
  return surrogate;
}

}  // namespace

std::optional<DataFault> check_conversation(const Conversation& conversation,
                                            const RoleNames& roles, Turns& turns) {
  turns = Turns();
  if (auto found = check_record(conversation)) return found;
  int first_role = 0;
  if (auto found = find_role(roles, conversation.messages.front(), 0, first_role)) return found;
  turns.skipped_first = first_role != 0;
  const size_t first = turns.skipped_first ? 1 : 0;
  if (auto found = check_order(roles, conversation.messages, first)) return found;
  return take_texts(conversation.messages, first, turns);
}

}  // namespace fastsft
