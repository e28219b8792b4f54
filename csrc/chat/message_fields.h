#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "chat/data_format.h"
#include "chat/train_mark.h"

namespace fastsft {

// Reads a text, or a list of text parts. `marks`: collects the marks of the parts, if given.
void read_text(JsonScanner& scanner, Value& value, MarkReader* marks = nullptr);

// True for a JSON cell of a table that means no list or an empty list.
bool holds_nothing(const Value& value);

// Reads messages of {"from", "value"} or {"role", "content"}. If a field comes twice, the last one
// counts.
class MessageReader {
 public:
  explicit MessageReader(UnusedFields& unused) : unused_(unused) {}

  // The list that comes next in `scanner`, or what is in its place, to messages, messages_kind and
  // messages_empty of `record`.
  void read_list(JsonScanner& scanner, Conversation& record);

 private:
  void read_message(JsonScanner& scanner, Message& message);
  bool read_extra(JsonScanner& scanner, MessageExtras& extras);
  void read_content(JsonScanner& scanner, Value& value, MessageExtras& extras);
  static void settle_extras(Message& message, MessageExtras extras);
  static void settle_names(Message& message, Value role, Value content);

  UnusedFields& unused_;
  MarkReader marks_;
  std::string key_;
};

// Records with one list of messages. `column`: its name, or "" for "conversations" or "messages",
// of which the second is taken where the first is missing or null.
class MessageListReader : public FieldReader {
 public:
  MessageListReader(std::string column, MessageNames names, UnusedFields& unused)
      : FieldReader(unused),
        column_(std::move(column)),
        names_(names),
        notes_(std::make_shared<const RecordNotes>(
            RecordNotes{.column = column_, .hint = {}, .tools = {}, .split = {}, .lost = {}})),
        messages_(unused) {}

  bool read(const std::string& name, JsonScanner& scanner, Conversation& record) override;
  void finish(Conversation& record) override;

 private:
  std::string column_;
  MessageNames names_;
  std::shared_ptr<const RecordNotes> notes_;  // of every record
  MessageReader messages_;
};

// "conversations" or "messages" is a list of messages.
bool has_standard_list(const RecordSketch& record);

// Of a record whose list of messages has these names, what MessageListReader calls its column.
// "conversations" goes before "messages", and both before a list of another name, of which there
// must be one.
std::optional<std::string> find_message_list(const RecordSketch& record, MessageNames names);

}  // namespace fastsft
