#pragma once

#include <string>

#include "chat/conversation.h"
#include "chat/role_names.h"

namespace fastsft {

// Returns a record as a JSON object for other programs, with all that was read of it: "messages"
// with "role", "content", "tool_calls", "reasoning_content", "tool_call_id", "name" and "train",
// and "id", "system", "tools" and "variables" (RecordNotes) of the record. Known roles have their
// usual names, and calls that are texts (call_text.h) are "tool_calls". A message that is no object
// is null. If the record is no conversation, "fault" says why, and there are no messages.
std::string conversation_json(const Conversation& record, const RoleNames& roles);

}  // namespace fastsft
