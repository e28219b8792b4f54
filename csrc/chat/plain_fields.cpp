#include "chat/plain_fields.h"

#include <utility>

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
  record.read_fault = ReadFault::kBadField;
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

}  // namespace fastsft
