#include "chat/record_parser.h"

namespace fastsft {

void RecordParser::parse(JsonScanner& scanner, Conversation& record) {
  const int64_t number = record.number, line = record.line;
  record = Conversation();
  record.number = number;
  record.line = line;
  record.messages_kind = ValueKind::kMissing;
  record.kind = scanner.peek();
  record.byte = scanner.byte();
  if (record.kind != ValueKind::kObject) return scanner.skip();
  scanner.enter_object();
  while (scanner.next_key(key_)) read_field(scanner, record);
}

void RecordParser::read_field(JsonScanner& scanner, Conversation& record) {
  const bool is_known = record.messages_kind != ValueKind::kMissing;
  const bool has_messages = is_known && record.shape == RecordShape::kMessages;
  const bool has_conversations = is_known && record.shape == RecordShape::kConversations &&
                                 record.messages_kind != ValueKind::kNull;
  // A table of both shapes has null in the column that is not a record's own.
  if (key_ == "conversations" && has_messages && scanner.peek() == ValueKind::kNull) {
    scanner.skip();
  } else if (key_ == "conversations") {
    record.shape = RecordShape::kConversations;
    read_messages(scanner, record);
  } else if (key_ == "messages" && !has_conversations) {
    record.shape = RecordShape::kMessages;
    read_messages(scanner, record);
  } else if (key_ == "id") {
    read_id(scanner, record);
  } else if (key_ == "system") {
    read_text(scanner, record.system);
  } else if (key_ == "train") {
    record.train = scanner.peek();
    scanner.skip();
  } else {
    scanner.skip();
  }
}

void RecordParser::read_id(JsonScanner& scanner, Conversation& record) {
  if (scanner.peek() == ValueKind::kString) return scanner.read_string(record.id);
  record.id = std::string(scanner.read_raw());
}

void RecordParser::read_messages(JsonScanner& scanner, Conversation& record) {
  record.messages.clear();
  record.messages_kind = scanner.peek();
  if (record.messages_kind != ValueKind::kArray) {
    record.messages_empty = !scanner.read_value().is_true;
    return;
  }
  scanner.enter_array();
  while (scanner.next_item()) read_message(scanner, record.messages.emplace_back());
  record.messages_empty = record.messages.empty();
}

void RecordParser::read_message(JsonScanner& scanner, Message& message) {
  message.kind = scanner.peek();
  message.byte = scanner.byte();
  if (message.kind != ValueKind::kObject) return scanner.skip();
  Value role, content;
  scanner.enter_object();
  while (scanner.next_key(key_)) {
    if (key_ == "from") {
      message.from = scanner.read_value();
    } else if (key_ == "role") {
      role = scanner.read_value();
    } else if (key_ == "value") {
      read_text(scanner, message.value);
    } else if (key_ == "content") {
      read_text(scanner, content);
    } else if (key_ == "train") {
      message.train = scanner.peek();
      scanner.skip();
    } else {
      scanner.skip();
    }
  }
  settle_names(message, std::move(role), std::move(content));
}

void RecordParser::settle_names(Message& message, Value role, Value content) {
  const auto is_unset = [](const Value& value, bool may_be_null) {
    return value.kind == ValueKind::kMissing || (may_be_null && value.kind == ValueKind::kNull);
  };
  message.named_role = role.kind != ValueKind::kMissing && is_unset(message.from, true);
  message.named_content =
      content.kind != ValueKind::kMissing && is_unset(message.value, message.named_role);
  if (message.named_role) message.from = std::move(role);
  if (message.named_content) message.value = std::move(content);
}

void RecordParser::read_text(JsonScanner& scanner, Value& value) {
  value = Value();
  if (scanner.peek() != ValueKind::kArray) {
    value = scanner.read_value();
    return;
  }
  value.kind = ValueKind::kArray;
  value.is_text_parts = true;
  std::string type, part, joined, other;
  scanner.enter_array();
  while (scanner.next_item()) {
    value.is_true = true;
    const bool is_text = read_part(scanner, type, part);
    if (!is_text && value.is_text_parts) other = type;
    value.is_text_parts = value.is_text_parts && is_text;
    if (value.is_text_parts) joined += part;
  }
  value.text = value.is_text_parts ? std::move(joined) : std::move(other);
}

// Whether the next value is {"type": "text", "text": "..."}.
bool RecordParser::read_part(JsonScanner& scanner, std::string& type, std::string& text) {
  type.clear();
  text.clear();
  if (scanner.peek() != ValueKind::kObject) {
    scanner.skip();
    return false;
  }
  bool has_text = false;
  std::string key;
  scanner.enter_object();
  while (scanner.next_key(key)) {
    const bool is_string = scanner.peek() == ValueKind::kString;
    if (key == "text") has_text = is_string;
    if (is_string && (key == "type" || key == "text")) {
      scanner.read_string(key == "type" ? type : text);
    } else {
      scanner.skip();
    }
  }
  return has_text && type == "text";
}

}  // namespace fastsft
