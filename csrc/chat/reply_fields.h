#pragma once

#include <optional>
#include <string>

#include "chat/data_format.h"

namespace fastsft {

// A list of messages that ends with the user, with the reply to it in another field.
struct ReplyFields {
  std::string prompt;
  std::string reply;

  // As FormatChoice::column has it, "input/output", and back.
  std::string column() const { return prompt + "/" + reply; }
  static ReplyFields of_column(const std::string& column);
};

// Whether a reply may be in a field of this name: "completion", "response", "output", "answer" or
// "target".
bool is_reply_name(const std::string& name);
// Whether a list of messages of this name is a prompt, also where it ends with a reply.
bool is_prompt_name(const std::string& name);

// Null where there is no such list, or nothing that may be the reply to it.
std::optional<ReplyFields> find_reply_fields(const RecordSketch& record);

// A list that is not named as a prompt holds replies and ends with the user, next to what may be
// the reply: it may be a prompt, and a conversation whose last message nobody answered.
bool is_doubtful_prompt(const RecordSketch& record);

// Why a record must not be read though it is of some format: what is to be learned is not clear.
// Empty where it is.
std::string refuse_replies(const RecordSketch& record);

}  // namespace fastsft
