#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "chat/example.h"
#include "chat/issue.h"
#include "chat/role_names.h"
#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// The texts of a valid conversation: user, assistant, user, and so on. Texts point into the
// conversation. An empty text stands for any value that is false in Python
// (docs/spec/fastchat_labels.md, section 2, rule 5).
struct Turns {
  std::vector<const std::string*> texts;
  // The conversation began with a message of the assistant, which was removed.
  bool skipped_first = false;
};

// The role names that are accepted. After "from": human and gpt, unless the user asks for more.
// After "role": all known names.
struct FastchatRoles {
  RoleNames after_from;
  RoleNames after_role;
};

// Runs FastChat's checks in FastChat's order (docs/spec/fastchat_labels.md, section 2, rules 1 to 3
// and 5). If its preprocess() would raise an exception, returns that error, without record number
// and id. Otherwise fills `turns`. A record in another data format is checked in the form that
// `fastsft data convert` gives it.
std::optional<RecordError> check_conversation(const Conversation& conversation,
                                              const FastchatRoles& roles, Turns& turns);

// Returns the reason why FastChat drops a sample, found in the sample's text.
Issue find_drop_reason(const ChatTemplate& chat_template, const Turns& turns);
// Returns all issues of a sample that was not dropped.
std::vector<RecordIssue> find_notes(const Tokenizer& tokenizer, const Turns& turns,
                                    const Labels& labels);

}  // namespace fastsft
