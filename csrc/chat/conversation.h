#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastsft {

enum class ValueKind { kMissing, kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };

// "a number", "text", "nothing": for messages to people.
const char* describe(ValueKind kind);

// A JSON value as far as labels need it: its kind, whether Python calls it true, and a string's
// text. The text is UTF-8, but a lone surrogate escape is in it as three bytes that UTF-8
// forbids.
struct Value {
  ValueKind kind = ValueKind::kMissing;
  bool is_true = false;
  // A list whose items all are {"type": "text", "text": "..."}: `text` is theirs, joined. Of any
  // other list, `text` is the "type" of the first item that is none of these ("image_url").
  bool is_text_parts = false;
  std::string text;

  bool is_text() const { return kind == ValueKind::kString; }
};

struct Message {
  ValueKind kind = ValueKind::kObject;  // of the message itself
  Value from;                           // "from", or "role" where that is missing or null
  Value value;                          // "value", or "content" where that is missing, or null
                                        // next to a "role" that counts
  bool named_role = false;              // `from` is the field "role"
  bool named_content = false;           // `value` is the field "content"
  ValueKind train = ValueKind::kMissing;
  int64_t byte = 0;  // where it begins in its file
};

// Why a record could not be read at all; only records that are on a line of their own.
enum class ReadFault { kNone, kNotJson, kInvalidUtf8 };

// Which list of the record the messages are from.
enum class RecordShape { kConversations, kMessages };

// One record as it is in the data, faults included.
struct Conversation {
  ValueKind kind = ValueKind::kObject;  // of the record itself
  std::string id;                       // empty when there is none
  // "messages" is taken where "conversations" is missing or null.
  RecordShape shape = RecordShape::kConversations;
  ValueKind messages_kind = ValueKind::kArray;  // of that list
  bool messages_empty = false;
  std::vector<Message> messages;
  Value system;                           // the record's own "system"
  ValueKind train = ValueKind::kMissing;  // the record's own "train"
  ReadFault read_fault = ReadFault::kNone;
  std::string read_reason;  // "not JSON at byte 17: expected a value"
  // Place of the record in its file, a compressed file's content: number counted from 0, line
  // from 1, byte from 0.
  int64_t number = 0;
  int64_t line = 0;
  int64_t byte = 0;
};

}  // namespace fastsft
