#include "chat/conversation.h"

namespace fastsft {

const char* describe(ValueKind kind) {
  switch (kind) {
    case ValueKind::kMissing:
      return "nothing";
    case ValueKind::kNull:
      return "null";
    case ValueKind::kFalse:
      return "false";
    case ValueKind::kTrue:
      return "true";
    case ValueKind::kNumber:
      return "a number";
    case ValueKind::kString:
      return "text";
    case ValueKind::kArray:
      return "a list";
    case ValueKind::kObject:
      return "an object";
  }
  return "something else";
}

const RecordNotes& notes_of(const Conversation& record) {
  static const RecordNotes none;
  return record.notes ? *record.notes : none;
}

RecordNotes& own_notes(Conversation& record) {
  auto own = std::make_shared<RecordNotes>(notes_of(record));
  record.notes = own;
  return *own;
}

std::string list_name(const Conversation& record) {
  if (record.shape == RecordShape::kColumn) return notes_of(record).column;
  return record.shape == RecordShape::kMessages ? "messages" : "conversations";
}

}  // namespace fastsft
