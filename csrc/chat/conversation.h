#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

enum class ValueKind { kMissing, kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

// "a number", "text", "nothing": for messages to people.
const char* describe(ValueKind kind);

// A JSON value as far as labels need it: its kind, whether Python calls it true, and a string's
// text. The text is UTF-8, but a lone surrogate escape stands in it as three bytes that UTF-8
// forbids.
struct Value {
  ValueKind kind = ValueKind::kMissing;
  bool is_true = false;
  std::string text;

  bool is_text() const { return kind == ValueKind::kString; }
};

struct Message {
  ValueKind kind = ValueKind::kObject;  // of the message itself
  Value from;
  Value value;
};

// One record as it stands in the data, faults included.
struct Conversation {
  ValueKind kind = ValueKind::kObject;          // of the record itself
  std::string id;                               // empty when there is none
  ValueKind messages_kind = ValueKind::kArray;  // of "conversations"
  bool messages_empty = false;
  std::vector<Message> messages;
};

}  // namespace fastsft
