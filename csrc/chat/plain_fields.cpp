#include "chat/plain_fields.h"

#include <utility>

#include "chat/message_fields.h"
#include "core/error.h"

namespace fastsft {

Message plain_message(const char* role, PlainField field, const char* name) {
  Message message;
  message.from = {ValueKind::kString, true, false, role};
  message.value = std::move(field.value);
  message.byte = field.byte;
  message.field = name;
  return message;
}

void refuse_fields(Conversation& record, std::string reason) {
  record.read_fault = ReadError::kBadField;
  record.read_reason = std::move(reason);
  record.messages.clear();
}

void settle_fields(Conversation& record, RecordShape shape) {
  record.shape = shape;
  record.names = MessageNames::kEither;
  record.is_fastchats = false;
  record.messages_kind = ValueKind::kArray;
  record.messages_empty = record.messages.empty();
}

void HistoryField::clear() {
  messages_.clear();
  fault_.clear();
}

void HistoryField::read(JsonScanner& scanner) {
  clear();
  const ValueKind kind = scanner.peek();
  if (kind != ValueKind::kArray) {
    const Value value = scanner.read_value();
    if (kind != ValueKind::kNull && !holds_nothing(value)) refuse(describe(kind));
    return;
  }
  scanner.enter_array();
  while (scanner.next_item()) read_pair(scanner);
}

void HistoryField::read_pair(JsonScanner& scanner) {
  if (scanner.peek() != ValueKind::kArray) {
    refuse(concat("a list with ", describe(scanner.peek())));
    return scanner.skip();
  }
  size_t count = 0;
  scanner.enter_array();
  while (scanner.next_item()) {
    scanner.peek();
    const int64_t byte = scanner.byte();
    messages_.push_back(
        plain_message(count++ % 2 == 0 ? "human" : "gpt", {scanner.read_value(), byte}, kName));
  }
  if (count != 2) refuse(concat("a list with a list of ", count));
}

void HistoryField::refuse(const std::string& got) {
  fault_ = concat("\"history\" is ", got, "; expected a list of [instruction, output] pairs");
}

}  // namespace fastsft
