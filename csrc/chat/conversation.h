#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/json_scanner.h"

namespace fastsft {

// Rare fields of a message besides role and text: JSON as written, or empty.
struct MessageExtras {
  std::string calls;  // "tool_calls", or "function_call" as a list of one
  std::string reasoning;
  std::string call_id;
  std::string name;
  std::string content;  // in place of a text
};

// A field such as "train" that says whether a message or record is learned.
struct TrainMark {
  std::string field;  // as the data has it
  std::string value;  // its first characters
  bool is_learned = false;
  std::string problem;   // why it cannot be followed; empty when it can
  bool in_part = false;  // of a part of the content
};

struct Message {
  ValueKind kind = ValueKind::kObject;  // of the message itself
  Value from;                           // "from", or "role" where that is missing or null
  Value value;                          // "value", or "content" where that is missing, or null
                                        // next to a "role" that counts
  bool named_role = false;              // `from` is the field "role"
  bool named_content = false;           // `value` is the field "content"
  bool calls_tool = false;              // has "tool_calls" or "function_call", or is_call
  bool is_call = false;                 // of a role for calls (call_text.h): its text is one
  std::shared_ptr<const MessageExtras> extras;  // most messages have none
  ValueKind train = ValueKind::kMissing;        // kTrue or kFalse for what `mark` says
  std::shared_ptr<const TrainMark> mark;        // most messages have none
  int64_t byte = 0;                             // where it begins in its file
  const char* field = nullptr;  // the record's field that it is from, of formats without a list
  bool is_context = false;      // of a prompt: a reply there is not learned
};

// Explains why a message is not an object.
std::string explain_kind(const Message& message);

// Why a record could not be read at all. kNotJson, kInvalidUtf8: only for records on a line of
// their own. kOtherFormat: it has another data format than its file. kBadField: a field that its
// format needs is missing or unusable.
enum class ReadError { kNone, kNotJson, kInvalidUtf8, kOtherFormat, kBadField };

// Where the messages come from: the lists "conversations" or "messages", a list of another name,
// single fields, or one text that is no conversation.
enum class RecordShape { kConversations, kMessages, kColumn, kFields, kText };

// Names of role and text in the messages of a list.
enum class MessageNames { kFromValue, kRoleContent, kEither };

// Rare properties of a record.
struct RecordNotes {
  std::string column;  // the name of the list of messages, of kColumn
  std::string hint;    // where there is no list: what there is
  std::string tools;   // "tools" as it is written, for the model's own chat template
  // For a piece of a record (record_pieces.h): the part that it has, and the part that is in no
  // piece.
  std::string split;
  std::string lost;
  bool ends_with_reply = false;  // no message after its last learned reply is in its row
  size_t told = 0;  // messages whose faults the piece before it has; 0 for a first or only piece
};

// One record as it is in the data, with its faults.
struct Conversation {
  ValueKind kind = ValueKind::kObject;  // of the record itself
  std::string id;                       // empty when there is none, or null
  bool id_is_number = false;            // a number of strict JSON, as it is written
  // "messages" is taken where "conversations" is missing or null.
  RecordShape shape = RecordShape::kConversations;
  MessageNames names = MessageNames::kFromValue;  // as --mask_policy fastchat wants them
  bool is_fastchats = true;                       // its file has FastChat's own format
  ValueKind messages_kind = ValueKind::kArray;    // of that list
  bool messages_empty = false;
  std::vector<Message> messages;
  Value system;                           // the record's own "system"
  ValueKind train = ValueKind::kMissing;  // as a message's, for those that say nothing
  std::shared_ptr<const TrainMark> mark;
  ReadError read_fault = ReadError::kNone;
  std::string read_reason;   // "not JSON at byte 17: expected a value", "no \"output\""
  bool is_left_out = false;  // it is in no piece (RecordNotes)
  std::shared_ptr<const RecordNotes> notes;  // most records have none
  // Place of the record in its file, a compressed file's content: number counted from 0, line
  // from 1, byte from 0.
  int64_t number = 0;
  int64_t line = 0;
  int64_t byte = 0;
};

const RecordNotes& notes_of(const Conversation& record);
// Returns notes that belong to this record alone and may be changed.
RecordNotes& own_notes(Conversation& record);

// The record without its messages.
Conversation without_messages(const Conversation& record);

// Appends `conversation` to `result` as a record without a row.
void leave_out(Conversation& conversation, std::string reason, std::vector<Conversation>& result);

// "conversations", "messages", or the list's own name.
std::string list_name(const Conversation& record);

}  // namespace fastsft
