#include "chat/conversation_json.h"

#include "core/error.h"
#include "core/json_text.h"

namespace fastsft {
namespace {

// Appends a field; `json` is its value.
void append_field(const char* name, std::string_view json, std::string& text) {
  if (json.empty()) return;
  text += concat(text.back() == '{' ? "\"" : ", \"", name, "\": ");
  text += json;
}

std::string quoted(std::string_view value) {
  std::string text;
  append_json_string(value, text);
  return text;
}

std::string json_of(const Value& value, const MessageExtras& extras) {
  if (!extras.content.empty()) return extras.content;
  if (value.is_text() || value.is_text_parts) return quoted(value.text);
  return "null";
}

std::string_view train_json(ValueKind train) {
  return train == ValueKind::kTrue ? "true" : train == ValueKind::kFalse ? "false" : "";
}

std::string message_json(const Message& message, ValueKind train, const RoleNames& roles) {
  if (message.kind != ValueKind::kObject) return "null";
  static const MessageExtras kNone;
  const MessageExtras& extras = message.extras ? *message.extras : kNone;
  const auto role = roles.find(message.from.text);
  std::string text = "{";
  append_field("role",
               quoted(message.is_call ? name_of(Role::kAssistant)
                      : role          ? name_of(*role)
                                      : message.from.text),
               text);
  append_field("content", message.is_call ? "\"\"" : json_of(message.value, extras), text);
  append_field("reasoning_content", extras.reasoning, text);
  append_field("tool_calls", extras.calls, text);
  append_field("tool_call_id", extras.call_id, text);
  append_field("name", extras.name, text);
  const ValueKind own = message.train == ValueKind::kMissing ? train : message.train;
  const bool is_reply = message.is_call || role == Role::kAssistant;
  append_field("train", is_reply ? train_json(message.is_context ? ValueKind::kFalse : own) : "",
               text);
  return text + "}";
}

// Returns why the record has no messages, or "".
std::string fault_of(const Conversation& record) {
  if (record.read_fault != ReadError::kNone) return record.read_reason;
  if (record.kind != ValueKind::kObject) return concat("record is ", describe(record.kind));
  if (record.shape == RecordShape::kText) return "a text that is no conversation";
  if (record.messages_kind != ValueKind::kArray) {
    return concat("\"", list_name(record), "\" is no list of messages");
  }
  return {};
}

}  // namespace

std::string conversation_json(const Conversation& record, const RoleNames& roles) {
  std::string text = "{";
  if (!record.id.empty()) append_field("id", quoted(record.id), text);
  if (const std::string fault = fault_of(record); !fault.empty()) {
    append_field("fault", quoted(fault), text);
    return text + "}";
  }
  if (record.system.is_text()) append_field("system", quoted(record.system.text), text);
  append_field("tools", notes_of(record).tools, text);
  append_field("variables", notes_of(record).variables, text);
  std::string messages = "[";
  for (const Message& message : record.messages) {
    if (messages.size() > 1) messages += ", ";
    messages += message_json(message, record.train, roles);
  }
  append_field("messages", messages + "]", text);
  return text + "}";
}

}  // namespace fastsft
