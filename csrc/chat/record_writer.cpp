#include "chat/record_writer.h"

#include "chat/train_mark.h"
#include "core/error.h"
#include "core/json_text.h"

namespace fastsft {
namespace {

void append_train(ValueKind train, std::string& text) {
  if (train == ValueKind::kFalse || train == ValueKind::kTrue) {
    text += train == ValueKind::kFalse ? ", \"train\": false" : ", \"train\": true";
  }
}

// Appends `name` and `json`, unless it is empty. Line breaks in the JSON can become spaces, because
// line breaks inside strings are escaped.
void append_json(const char* name, std::string_view json, std::string& text) {
  if (json.empty()) return;
  text += name;
  for (const char c : json) text += c == '\n' || c == '\r' ? ' ' : c;
}

RecordIssue refuse(Issue remark, int64_t message, std::string reason) {
  return {remark, Outcome::kExcluded, message, std::move(reason)};
}

std::optional<RecordIssue> check_record(const Conversation& record) {
  if (record.read_fault != ReadError::kNone) {
    return refuse(issue_of(record.read_fault), -1, record.read_reason);
  }
  if (record.kind != ValueKind::kObject) {
    return refuse(Issue::kNotAnObject, -1, concat("record is ", describe(record.kind)));
  }
  if (record.messages_kind == ValueKind::kMissing) {
    return refuse(Issue::kNoConversations, -1,
                  concat("no \"", list_name(record), "\"", notes_of(record).hint));
  }
  if (record.messages_kind != ValueKind::kArray) {
    return refuse(Issue::kNoConversations, -1,
                  concat("\"", list_name(record), "\" is ", describe(record.messages_kind)));
  }
  if (record.messages_empty) return refuse(Issue::kEmptyConversation, -1, "empty conversation");
  if (record.shape == RecordShape::kText) {
    return refuse(Issue::kBadField, -1, "\"text\" is no conversation; it is trained on as it is");
  }
  if (record.system.is_true && !record.system.is_text() && !record.system.is_text_parts) {
    return refuse(Issue::kNotText, -1, concat("\"system\" is ", describe(record.system.kind)));
  }
  return std::nullopt;
}

std::optional<RecordIssue> check_message(const Message& message, int64_t index) {
  if (message.kind != ValueKind::kObject) {
    return refuse(Issue::kBadMessage, index, explain_kind(message));
  }
  if (!message.from.is_text()) {
    return refuse(Issue::kUnknownRole, index, concat("role is ", describe(message.from.kind)));
  }
  const Value& value = message.value;
  if (value.kind == ValueKind::kMissing) {
    return refuse(Issue::kBadMessage, index, "message has no \"value\" and no \"content\"");
  }
  if (!value.is_text() && !value.is_text_parts && value.kind != ValueKind::kNull) {
    return refuse(Issue::kNotText, index, concat("text is ", describe(value.kind)));
  }
  return std::nullopt;
}

}  // namespace

WrittenFormat parse_written_format(const std::string& word) {
  require(word == "sharegpt" || word == "messages",
          "--format: expected one of messages, sharegpt, got \"", word, "\"");
  return word == "sharegpt" ? WrittenFormat::kSharegpt : WrittenFormat::kMessages;
}

RecordWriter::RecordWriter(WrittenFormat format) : format_(format), roles_(true, {}) {}

std::optional<RecordIssue> RecordWriter::write(const Conversation& conversation,
                                               std::string& text) const {
  if (auto fault = check_record(conversation)) return fault;
  if (auto fault = find_bad_mark(conversation, roles_, MarkUse::kFollowed)) return fault;
  const size_t before = text.size();
  const bool is_sharegpt = format_ == WrittenFormat::kSharegpt;
  text += '{';
  if (!conversation.id.empty()) {
    text += "\"id\": ";
    if (conversation.id_is_number) {
      text += conversation.id;
    } else {
      append_json_string(conversation.id, text);
    }
    text += ", ";
  }
  if (is_sharegpt && conversation.system.is_true) {
    text += "\"system\": ";
    append_json_string(conversation.system.text, text);
    text += ", ";
  }
  text += is_sharegpt ? "\"conversations\": [" : "\"messages\": [";
  if (auto fault = write_messages(conversation, text)) {
    text.resize(before);
    return fault;
  }
  text += ']';
  append_json(", \"tools\": ", notes_of(conversation).tools, text);
  std::string_view variables = notes_of(conversation).variables;
  if (!variables.empty()) append_json(", ", variables.substr(1, variables.size() - 2), text);
  append_train(conversation.train, text);
  text += '}';
  return std::nullopt;
}

std::optional<RecordIssue> RecordWriter::write_messages(const Conversation& conversation,
                                                        std::string& text) const {
  const auto& messages = conversation.messages;
  const char* separator = "";
  if (format_ == WrittenFormat::kMessages && conversation.system.is_true) {
    if (messages.front().from.is_text() && messages.front().from.text == "system") {
      return refuse(Issue::kSystemIgnored, 0, "a system message next to the record's \"system\"");
    }
    write_message("system", conversation.system, ValueKind::kMissing, text);
    separator = ", ";
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (auto fault = check_message(messages[i], static_cast<int64_t>(i))) return fault;
    text += separator;
    const bool is_asked =
        messages[i].is_context && roles_.find(messages[i].from.text) == Role::kUser;
    write_message(name_role(messages[i].from.text), messages[i].value,
                  is_asked ? ValueKind::kMissing : messages[i].train, text);
    separator = ", ";
  }
  return std::nullopt;
}

void RecordWriter::write_message(std::string_view role, const Value& value, ValueKind train,
                                 std::string& text) const {
  const bool is_sharegpt = format_ == WrittenFormat::kSharegpt;
  text += is_sharegpt ? "{\"from\": " : "{\"role\": ";
  append_json_string(role, text);
  text += is_sharegpt ? ", \"value\": " : ", \"content\": ";
  if (value.kind == ValueKind::kNull) {
    text += "null";
  } else {
    append_json_string(value.text, text);
  }
  append_train(train, text);
  text += '}';
}

std::string_view RecordWriter::name_role(const std::string& name) const {
  const auto role = roles_.find(name);
  if (!role) return name;
  if (format_ == WrittenFormat::kMessages) return name_of(*role);
  return *role == Role::kUser ? "human" : *role == Role::kAssistant ? "gpt" : name_of(*role);
}

}  // namespace fastsft
