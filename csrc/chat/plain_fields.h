#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "core/json_scanner.h"

namespace fastsft {

// Messages that are made from single fields of a record.

// A field's value and its position in the file.
struct PlainField {
  Value value;
  int64_t byte = 0;

  // False also for null, which tables have for missing values.
  bool is_set() const {
    return value.kind != ValueKind::kMissing && value.kind != ValueKind::kNull;
  }
};

// Makes a message of FastChat's role "human" or "gpt".
Message plain_message(const char* role, PlainField field, const char* name);

// Marks a record without a conversation; `reason` is for people.
void refuse_fields(Conversation& record, std::string reason);

// Completes a record whose messages come from single fields.
void settle_fields(Conversation& record, RecordShape shape = RecordShape::kFields);

// "history" of LLaMA-Factory and ms-swift: a list of [question, reply] pairs, the turns before the
// record's own. Null and a table's cells "" and "[]" mean an empty list.
class HistoryField {
 public:
  static constexpr const char* kName = "history";

  void clear();
  // Reads the next value of `scanner`.
  void read(JsonScanner& scanner);
  // Why it cannot be used; empty if it can.
  const std::string& fault() const { return fault_; }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  void read_pair(JsonScanner& scanner);
  void refuse(const std::string& got);

  std::vector<Message> messages_;
  std::string fault_;
};

}  // namespace fastsft
