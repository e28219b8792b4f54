#pragma once

#include <string>

#include "chat/conversation.h"
#include "chat/json_scanner.h"

namespace fastsft {

// Reads one record of JSON into a Conversation. Fields that labels do not need are checked to be
// JSON and skipped; of a field that comes twice the last one counts, as in Python.
class RecordParser {
 public:
  // The value that comes next in `scanner`. `record` is overwritten but for its place.
  void parse(JsonScanner& scanner, Conversation& record);

 private:
  void read_field(JsonScanner& scanner, Conversation& record);
  void read_id(JsonScanner& scanner, Conversation& record);
  void read_messages(JsonScanner& scanner, Conversation& record);
  void read_message(JsonScanner& scanner, Message& message);
  static void settle_names(Message& message, Value role, Value content);
  void read_text(JsonScanner& scanner, Value& value);
  bool read_part(JsonScanner& scanner, std::string& type, std::string& text);

  std::string key_;
};

}  // namespace fastsft
