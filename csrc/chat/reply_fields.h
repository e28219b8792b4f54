#pragma once

#include <optional>
#include <string>

#include "chat/data_format.h"

namespace fastsft {

// The fields for a prompt and its reply: `prompt` is a message list that ends with the user,
// `reply` is another field.
struct ReplyFields {
  std::string prompt;
  std::string reply;

  // Convert between ReplyFields and the form in FormatChoice::column, such as "input/output".
  std::string column() const { return prompt + "/" + reply; }
  static ReplyFields of_column(const std::string& column);
};

// Returns true if a field with this name may be a reply: "completion", "response", "output",
// "answer" or "target".
bool is_reply_name(const std::string& name);
// Returns true if a message list with this name is a prompt, even if it ends with a reply.
bool is_prompt_name(const std::string& name);

// Returns the two fields, or null if the record has no such list or no field that may be the reply.
std::optional<ReplyFields> find_reply_fields(const RecordSketch& record);

// Returns true if it is unclear whether a message list is a prompt or a complete conversation whose
// last message has no answer: the list holds replies, ends with the user, and is not named like a
// prompt, and the record has a field that may be the reply.
bool is_doubtful_prompt(const RecordSketch& record);

// Returns why a record must not be read although it matches a format: it is not clear which reply
// is to be learned. Returns "" if that is clear.
std::string refuse_replies(const RecordSketch& record);

}  // namespace fastsft
