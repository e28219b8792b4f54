#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "core/json_scanner.h"

namespace fastsft {

// Functions that make messages from a record's single fields.

// A field's value and its position in the file.
struct PlainField {
  Value value;
  int64_t byte = 0;

  // False also for null, which stands for a missing value in tables.
  bool is_set() const {
    return value.kind != ValueKind::kMissing && value.kind != ValueKind::kNull;
  }
};

// Returns a message with FastChat's role "human" or "gpt".
Message plain_message(const char* role, PlainField field, const char* name);

// Marks a record as having no conversation. `reason`: the explanation for people.
void refuse_fields(Conversation& record, std::string reason);

// Completes a record whose messages were made from single fields.
void settle_fields(Conversation& record, RecordShape shape = RecordShape::kFields);

// The field "history" in LLaMA-Factory and ms-swift: a list of [question, reply] pairs, which are
// turns before the record's own turn. Null and the table cells "" and "[]" mean an empty list.
class HistoryField {
 public:
  static constexpr const char* kName = "history";

  void clear();
  // Reads the scanner's next value.
  void read(JsonScanner& scanner);
  // Returns why the history cannot be used; empty if it can.
  const std::string& fault() const { return fault_; }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  void read_pair(JsonScanner& scanner);
  void refuse(const std::string& got);

  std::vector<Message> messages_;
  std::string fault_;
};

}  // namespace fastsft
