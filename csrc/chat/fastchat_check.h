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

// The messages of a sound conversation, in turn user, assistant, user, ... Texts point into the
// conversation; an empty text is one that Python calls false (docs/spec/fastchat_labels.md, section
// 2, rule 5).
struct Turns {
  std::vector<const std::string*> texts;
  bool skipped_first = false;  // a first message of the assistant was removed
};

// Names of roles: after "from" human and gpt unless the user asks for more, after "role" all.
struct FastchatRoles {
  RoleNames after_from;
  RoleNames after_role;
};

// FastChat's own checks in FastChat's order (docs/spec/fastchat_labels.md, section 2, rules 1 to 3
// and 5): what its preprocess() would raise comes back as a fault (record and id not filled in),
// otherwise `turns` is filled. Of other data formats than FastChat's own this is judged on what
// `fastsft data convert` makes of the record.
std::optional<RecordError> check_conversation(const Conversation& conversation,
                                              const FastchatRoles& roles, Turns& turns);

// The one reason of a sample that FastChat drops, found in its text.
Issue find_drop_reason(const ChatTemplate& chat_template, const Turns& turns);
// All remarks on a sample that was not dropped.
std::vector<RecordIssue> find_notes(const Tokenizer& tokenizer, const Turns& turns,
                                    const Labels& labels);

}  // namespace fastsft
