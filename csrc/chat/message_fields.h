#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "chat/data_format.h"
#include "chat/train_mark.h"

namespace fastsft {

// Reads a text or a list of text parts. `marks`: collects the train marks of the parts, if given.
void read_text(JsonScanner& scanner, Value& value, MarkReader* marks = nullptr);

// True for a table's JSON cell that stands for no list or an empty list.
bool holds_nothing(const Value& value);

// Reads messages with the fields {"from", "value"} or {"role", "content"}. If a field occurs twice,
// the last value counts.
class MessageReader {
 public:
  explicit MessageReader(UnusedFields& unused) : unused_(unused) {}

  // Reads the scanner's next value, usually a list, into messages, messages_kind and messages_empty
  // in `record`.
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

// Reads records with a single message list. `column`: the list's name; "" for "conversations", or
// "messages" if "conversations" is missing or null.
class MessageListReader : public FieldReader {
 public:
  MessageListReader(std::string column, MessageNames names, UnusedFields& unused)
      : FieldReader(unused),
        column_(std::move(column)),
        names_(names),
        notes_(std::make_shared<const RecordNotes>(RecordNotes{
            .column = column_, .hint = {}, .tools = {}, .variables = {}, .split = {}, .lost = {}})),
        messages_(unused) {}

  bool read(const std::string& name, JsonScanner& scanner, Conversation& record) override;
  void finish(Conversation& record) override;

 private:
  std::string column_;
  MessageNames names_;
  std::shared_ptr<const RecordNotes> notes_;  // shared by all records
  MessageReader messages_;
};

// Returns true if "conversations" or "messages" is a message list.
bool has_standard_list(const RecordSketch& record);

// Returns the `column` argument of MessageListReader for a record whose message list uses these
// names. "conversations" goes before "messages", and both go before a list with another name, which
// must be the only such list.
std::optional<std::string> find_message_list(const RecordSketch& record, MessageNames names);

}  // namespace fastsft
