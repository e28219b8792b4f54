#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/json_scanner.h"

namespace fastsft {

// A message's rare fields, next to role and text. Each holds the field's JSON, or is empty.
struct MessageExtras {
  std::string calls;  // "tool_calls", or "function_call" as a list with a single call
  std::string reasoning;
  std::string call_id;
  std::string name;
  std::string content;  // the content if it is not a text
};

// A train mark: a field such as "train" that says whether a message or record is learned.
struct TrainMark {
  std::string field;  // the field's name in the data
  std::string value;  // the first characters of the field's value
  bool is_learned = false;
  std::string problem;   // why the mark cannot be followed; empty if it can
  bool in_part = false;  // the mark is in a part of the message's content
};

// A message as it stands in the data, not checked yet.
struct Message {
  ValueKind kind = ValueKind::kObject;  // type of the message itself
  Value from;                           // "from", or "role" if "from" is missing or null
  // "value", or "content" if "value" is missing. A null "value" also gives way to "content" if
  // `named_role` is true.
  Value value;
  bool named_role = false;     // `from` was read from the field "role"
  bool named_content = false;  // `value` was read from the field "content"
  bool calls_tool = false;     // has "tool_calls" or "function_call", or `is_call` is true
  bool is_call = false;  // its role is a role for tool calls (call_text.h), and its text is a call
  std::shared_ptr<const MessageExtras> extras;  // null for most messages
  ValueKind train = ValueKind::kMissing;        // kTrue or kFalse as `mark` says
  std::shared_ptr<const TrainMark> mark;        // null for most messages
  int64_t byte = 0;                             // position of the message in its file
  // The record's field that holds the message, for data formats without a list of messages.
  const char* field = nullptr;
  bool is_context = false;  // belongs to a prompt, in which replies are not learned
};

// Returns an explanation why a message is not an object.
std::string explain_kind(const Message& message);

// Why a record could not be read at all. kNotJson and kInvalidUtf8 are only for files with a record
// per line. kOtherFormat: the record has another data format than its file. kBadField: a field that
// the data format needs is missing or unusable.
enum class ReadError { kNone, kNotJson, kInvalidUtf8, kOtherFormat, kBadField };

// Where the messages are in the record: in the list "conversations" or "messages", in a list with
// another name, in single fields, or in a text that is not a conversation.
enum class RecordShape { kConversations, kMessages, kColumn, kFields, kText };

// The fields for role and text in a list of messages: "from" and "value", "role" and "content",
// or either pair.
enum class MessageNames { kFromValue, kRoleContent, kEither };

// A record's rare properties.
struct RecordNotes {
  std::string column;  // name of the message list (kColumn)
  // Describes the fields that exist if there is no message list, or if a message has no role.
  std::string hint;
  std::string tools;  // JSON of "tools", for the model's own chat template
  // JSON object of "chat_template_kwargs" and "enable_thinking", for the same template
  std::string variables;
  // For a record's piece (record_pieces.h): which part it has, and which part is in no piece.
  std::string split;
  std::string lost;
  bool ends_with_reply = false;  // the row ends with its last learned reply
  // For a later piece: the number of messages whose issues are reported with the piece before; 0
  // for a first or only piece.
  size_t told = 0;
};

// A record as it stands in the data, with its errors.
struct Conversation {
  ValueKind kind = ValueKind::kObject;  // type of the record itself
  std::string id;                       // empty if the id is missing or null
  bool id_is_number = false;            // `id` holds a valid JSON number
  // "messages" is used if "conversations" is missing or null.
  RecordShape shape = RecordShape::kConversations;
  MessageNames names = MessageNames::kFromValue;  // the names that --mask_policy fastchat expects
  bool is_fastchats = true;                       // its file has FastChat's own format
  ValueKind messages_kind = ValueKind::kArray;    // type of the message list
  bool messages_empty = false;
  std::vector<Message> messages;
  Value system;                           // the record's "system" field
  ValueKind train = ValueKind::kMissing;  // value for messages without their own train mark
  std::shared_ptr<const TrainMark> mark;
  ReadError read_fault = ReadError::kNone;
  // Explains `read_fault`, such as "not JSON at byte 17: expected a value".
  std::string read_reason;
  bool is_left_out = false;  // the record is in no piece (RecordNotes) and has no row
  std::shared_ptr<const RecordNotes> notes;  // null for most records
  // Position of the record in its file, after decompression. The number and the byte are counted
  // from 0, the line from 1.
  int64_t number = 0;
  int64_t line = 0;
  int64_t byte = 0;
};

// Returns an explanation why the record's message list is not a list.
std::string explain_list(const Conversation& record);

// Returns the record's notes, or empty notes if there are none.
const RecordNotes& notes_of(const Conversation& record);
// Returns the record's notes for writing. Notes that are shared with other records are copied
// first.
RecordNotes& own_notes(Conversation& record);

// Returns a copy of the record without its messages.
Conversation without_messages(const Conversation& record);

// Appends `conversation` to `result`, marked as a record without a row. `reason`: an explanation
// for reports.
void leave_out(Conversation& conversation, std::string reason, std::vector<Conversation>& result);

// Returns the name of the record's message list: "conversations", "messages" or another name.
std::string list_name(const Conversation& record);

}  // namespace fastsft
