#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/conversation.h"
#include "chat/issue.h"
#include "chat/role_names.h"

namespace fastsft {

// The formats in which conversations are written: {"conversations": [{"from", "value"}]} or
// {"messages": [{"role", "content"}]}.
enum class WrittenFormat { kSharegpt, kMessages };

// Parses "sharegpt" or "messages". Throws std::invalid_argument for another word.
WrittenFormat parse_written_format(const std::string& word);

// Writes conversations as JSON records, a line for each.
class RecordWriter {
 public:
  explicit RecordWriter(WrittenFormat format);

  // Appends the record to `text`. If the record cannot be written, returns the reason and leaves
  // `text` unchanged. Roles get the written format's names; an unknown role keeps its name. The
  // record's tool definitions are written unchanged.
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
