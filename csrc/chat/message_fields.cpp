#include "chat/message_fields.h"

#include "chat/call_text.h"
#include "chat/issue.h"
#include "chat/template_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

constexpr std::string_view kEmptyText = "\"\"";  // an empty text as JSON

// Reads the next value into `type` and `text`. Returns true if it is {"type": "text", "text":
// "..."}.
bool read_part(JsonScanner& scanner, std::string& type, std::string& text, MarkReader* marks) {
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
    } else if (marks == nullptr || key == "type" || key == "text" || !marks->read(key, scanner)) {
      scanner.skip();
    }
  }
  return has_text && type == "text";
}

// Describes an object without a role, the scanner's next value, by its first few fields.
std::string describe_fields(JsonScanner scanner) {
  constexpr int kMost = 6;
  std::string names, key;
  scanner.enter_object();
  for (int count = 0; count < kMost && scanner.next_key(key); ++count) {
    names += concat(names.empty() ? "" : ", ", printable(key));
    scanner.skip();
  }
  return concat("; expected {\"role\": ..., \"content\": ...}, ",
                names.empty() ? "it has no fields" : "its fields are " + names);
}

}  // namespace

bool holds_nothing(const Value& value) {
  if (!value.is_text()) return false;
  std::string text;
  for (const char c : value.text) {
    if (kJsonSpace.find(c) == std::string_view::npos) text += c;
  }
  return text.empty() || text == "[]" || text == "null";
}

void read_text(JsonScanner& scanner, Value& value, MarkReader* marks) {
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
    if (marks != nullptr) marks->begin_part();
    const bool is_text = read_part(scanner, type, part, marks);
    if (!is_text && value.is_text_parts) other = type;
    value.is_text_parts = value.is_text_parts && is_text;
    if (value.is_text_parts) joined += part;
  }
  value.text = value.is_text_parts ? std::move(joined) : std::move(other);
  if (marks != nullptr) marks->end_parts();
}

void MessageReader::read_list(JsonScanner& scanner, Conversation& record) {
  record.messages.clear();
  record.messages_kind = scanner.peek();
  if (record.messages_kind != ValueKind::kArray) {
    record.messages_empty = !scanner.read_value().is_true;
    return;
  }
  scanner.enter_array();
  while (scanner.next_item()) {
    const JsonScanner start = scanner;
    Message& message = record.messages.emplace_back();
    read_message(scanner, message);
    const bool lacks_role =
        message.kind == ValueKind::kObject && message.from.kind == ValueKind::kMissing;
    if (!lacks_role || !notes_of(record).hint.empty()) continue;
    own_notes(record).hint = describe_fields(start);
  }
  record.messages_empty = record.messages.empty();
}

void MessageReader::read_message(JsonScanner& scanner, Message& message) {
  message.kind = scanner.peek();
  message.byte = scanner.byte();
  if (message.kind != ValueKind::kObject) return scanner.skip();
  Value role, content;
  MessageExtras extras;
  marks_.begin();
  scanner.enter_object();
  while (scanner.next_key(key_)) {
    if (key_ == "from") {
      message.from = scanner.read_value();
    } else if (key_ == "role") {
      role = scanner.read_value();
    } else if (key_ == "value") {
      read_content(scanner, message.value, extras);
    } else if (key_ == "content") {
      read_content(scanner, content, extras);
    } else if (!read_extra(scanner, extras) && !marks_.read(key_, scanner)) {
      unused_.skip("a message's ", key_, scanner);
    }
  }
  message.mark = marks_.take();
  message.train = train_of(message.mark.get());
  settle_names(message, std::move(role), std::move(content));
  settle_extras(message, std::move(extras));
}

// Reads a text into `value`, or keeps any other value's JSON in `extras`.
void MessageReader::read_content(JsonScanner& scanner, Value& value, MessageExtras& extras) {
  if (scanner.peek() == ValueKind::kString) {
    value = scanner.read_value();
    return;
  }
  JsonScanner start = scanner;
  read_text(scanner, value, &marks_);
  const bool is_null = value.kind == ValueKind::kNull;
  if (!is_null && !value.is_text_parts) extras.content = start.read_raw();
}

void MessageReader::settle_extras(Message& message, MessageExtras extras) {
  const Value& value = message.value;
  if (extras.calls.empty() && value.is_text() && is_call_role(message.from.text)) {
    CallText call = read_call_text(value.text);
    extras.calls = std::move(call.calls);
    message.is_call = !extras.calls.empty();
    if (message.is_call && extras.reasoning.size() <= kEmptyText.size()) {
      extras.reasoning = std::move(call.reasoning);
    }
  }
  message.calls_tool = !extras.calls.empty();
  if (value.is_text() || value.is_text_parts) extras.content.clear();
  const auto is_set = [](const std::string& json) { return !json.empty(); };
  if (is_set(extras.calls) || is_set(extras.reasoning) || is_set(extras.call_id) ||
      is_set(extras.name) || is_set(extras.content)) {
    message.extras = std::make_shared<const MessageExtras>(std::move(extras));
  }
}

// Reads the field key_ into `extras` if the field belongs there; otherwise returns false.
bool MessageReader::read_extra(JsonScanner& scanner, MessageExtras& extras) {
  if (key_ == "tool_calls" || key_ == "function_call") {
    JsonScanner ahead = scanner;
    const Value value = ahead.read_value();
    const std::string_view json = scanner.read_raw();
    extras.calls.clear();  // if the field occurs twice, the last value counts
    if (!value.is_true || holds_nothing(value)) return true;
    unused_.add("a message's " + key_);
    extras.calls = json;
    if (key_ == "function_call") {
      extras.calls = concat("[{\"type\": \"function\", \"function\": ", json, "}]");
    }
    return true;
  }
  const bool is_reasoning = TemplateFields::is_reasoning(key_);
  std::string* const text = is_reasoning             ? &extras.reasoning
                            : key_ == "tool_call_id" ? &extras.call_id
                            : key_ == "name"         ? &extras.name
                                                     : nullptr;
  if (text == nullptr) return false;
  const ValueKind kind = scanner.peek();
  if (!is_reasoning) text->clear();
  if (kind != ValueKind::kString) {
    scanner.skip();
    if (kind != ValueKind::kNull) unused_.add(concat("a message's ", key_, " that is no text"));
    return true;
  }
  const std::string_view json = scanner.read_raw();
  const bool is_given =
      // The thoughts were already given under another name.
      is_reasoning && text->size() > kEmptyText.size();
  if (is_given && json != *text && json != kEmptyText) unused_.add("a message's second thoughts");
  if (!is_given) *text = json;
  unused_.add("a message's " + key_);
  return true;
}

void MessageReader::settle_names(Message& message, Value role, Value content) {
  const auto is_unset = [](const Value& value, bool may_be_null) {
    return value.kind == ValueKind::kMissing || (may_be_null && value.kind == ValueKind::kNull);
  };
  message.named_role = role.kind != ValueKind::kMissing && is_unset(message.from, true);
  message.named_content =
      content.kind != ValueKind::kMissing && is_unset(message.value, message.named_role);
  if (message.named_role) message.from = std::move(role);
  if (message.named_content) message.value = std::move(content);
}

bool MessageListReader::read(const std::string& name, JsonScanner& scanner, Conversation& record) {
  if (name == "system") {
    read_text(scanner, record.system);
    return true;
  }
  if (!column_.empty()) {
    if (name != column_) return false;
    messages_.read_list(scanner, record);
    return true;
  }
  const bool is_known = record.messages_kind != ValueKind::kMissing;
  const bool has_messages = is_known && record.shape == RecordShape::kMessages;
  const bool has_conversations = is_known && record.shape == RecordShape::kConversations &&
                                 record.messages_kind != ValueKind::kNull;
  // In a table with both shapes, the unused shape's column is null.
  if (name == "conversations" && has_messages && scanner.peek() == ValueKind::kNull) {
    scanner.skip();
  } else if (name == "conversations") {
    record.shape = RecordShape::kConversations;
    messages_.read_list(scanner, record);
  } else if (name == "messages" && !has_conversations) {
    record.shape = RecordShape::kMessages;
    messages_.read_list(scanner, record);
  } else {
    return false;
  }
  return true;
}

void MessageListReader::finish(Conversation& record) {
  record.names = names_;
  record.is_fastchats = column_.empty() && names_ == MessageNames::kFromValue;
  if (column_.empty()) return;
  record.shape = RecordShape::kColumn;
  if (record.notes == nullptr) {
    record.notes = notes_;
  } else {
    own_notes(record).column = column_;
  }
}

bool has_standard_list(const RecordSketch& record) {
  return find_message_list(record, MessageNames::kFromValue) == "" ||
         find_message_list(record, MessageNames::kRoleContent) == "";
}

std::optional<std::string> find_message_list(const RecordSketch& record, MessageNames names) {
  const FieldSketch* other = nullptr;
  for (const char* name : {"conversations", "messages"}) {
    const FieldSketch* field = record.find(name);
    if (field == nullptr || !field->messages) continue;
    return field->messages == names ? std::optional<std::string>("") : std::nullopt;
  }
  for (const FieldSketch& field : record.fields) {
    if (!field.messages) continue;
    if (other != nullptr && other->name != field.name) return std::nullopt;
    other = &field;
  }
  if (other == nullptr || other->messages != names) return std::nullopt;
  return other->name;
}

}  // namespace fastsft
