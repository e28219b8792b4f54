#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/conversation.h"
#include "chat/issue.h"
#include "chat/role_names.h"

namespace fastsft {

// What conversations are written as: {"conversations": [{"from", "value"}]} or
// {"messages": [{"role", "content"}]}.
enum class WrittenFormat { kSharegpt, kMessages };

// "sharegpt" or "messages"; std::invalid_argument for another word.
WrittenFormat parse_written_format(const std::string& word);

// Writes conversations as records of JSON, each on one line.
class RecordWriter {
 public:
  explicit RecordWriter(WrittenFormat format);

  // Appends the record to `text`; or says why it cannot be written, with `text` as it was. Roles
  // are named as the format names them; a role that nobody knows keeps its name. Tools that the
  // record defines are written as they are.
  std::optional<RecordIssue> write(const Conversation& conversation, std::string& text) const;

 private:
  std::optional<RecordIssue> write_messages(const Conversation& conversation,
                                            std::string& text) const;
  void write_message(std::string_view role, const Value& value, ValueKind train,
                     std::string& text) const;
  std::string_view name_role(const std::string& name) const;

  WrittenFormat format_;
  RoleNames roles_;
};

}  // namespace fastsft
