#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/conversation.h"
#include "chat/dialogue.h"

namespace fastsft {

// What a chat template writes other than roles and texts. Only a model's own may write any of it.
struct TemplateFields {
  bool tools = false;      // of a record, "tools"
  bool calls = false;      // "tool_calls", and what results have: "tool_call_id" and "name"
  bool reasoning = false;  // "reasoning_content"

  // From the names "tools", "tool_calls" and "reasoning_content".
  explicit TemplateFields(const std::vector<std::string>& names);

  // What is written of a message of `role`, as one JSON object; empty for nothing.
  std::string json_of(const MessageExtras& extras, Role role) const;
  // Whether a field is written that reports name so when it is not used: "a message's tool_calls".
  bool writes(std::string_view reported) const;
};

}  // namespace fastsft
