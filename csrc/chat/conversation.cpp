#include "chat/conversation.h"

#include "core/error.h"

namespace fastsft {

std::string explain_kind(const Message& message) {
  const char* way_out = message.kind == ValueKind::kString
                            ? "; write the texts in turn as content of role user and assistant"
                            : "";
  return concat("message is ", describe(message.kind),
                "; expected an object as {\"role\": ..., \"content\": ...}", way_out);
}

std::string explain_list(const Conversation& record) {
  const char* way_out = record.messages_kind == ValueKind::kString
                            ? "; write the list itself, not its JSON as a text"
                            : "";
  return concat("\"", list_name(record), "\" is ", describe(record.messages_kind),
                "; expected a list of messages", way_out);
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

Conversation without_messages(const Conversation& record) {
  Conversation part;
  part.id = record.id;
  part.shape = record.shape;
  part.notes = record.notes;
  part.names = record.names;
  part.is_fastchats = record.is_fastchats;
  part.system = record.system;
  part.train = record.train;
  part.mark = record.mark;
  part.number = record.number;
  part.line = record.line;
  part.byte = record.byte;
  return part;
}

void leave_out(Conversation& conversation, std::string reason, std::vector<Conversation>& result) {
  own_notes(conversation).lost = std::move(reason);
  conversation.is_left_out = true;
  result.push_back(std::move(conversation));
}

std::string list_name(const Conversation& record) {
  if (record.shape == RecordShape::kColumn) return notes_of(record).column;
  return record.shape == RecordShape::kMessages ? "messages" : "conversations";
}

}  // namespace fastsft
