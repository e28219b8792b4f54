#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/call_ids.h"
#include "chat/conversation.h"
#include "chat/dialogue.h"

namespace fastsft {

// What a chat template writes other than roles and texts. Only a model's own may write any of it.
struct TemplateFields {
  bool tools = false;      // of a record, "tools"
  bool calls = false;      // "tool_calls", and what results have: "tool_call_id" and "name"
  bool reasoning = false;  // "reasoning_content", under each of its names
  CallIdForm call_ids = CallIdForm::kNone;  // that it needs
  // System messages: another next to the first, and one after a reply.
  bool second_system = false, later_system = false;

  // From the names "tools", "tool_calls", "reasoning_content", "call_ids", "short_call_ids" or
  // "named_call_ids", "second_system" and "later_system".
  explicit TemplateFields(const std::vector<std::string>& names);

  // "reasoning_content", as vLLM and Gemma call it "reasoning", as gpt-oss and Ollama "thinking".
  static bool is_reasoning(std::string_view name);

  // What is written of a message of `role`, as one JSON object; empty for nothing.
  std::string json_of(const MessageExtras& extras, Role role) const;
  // Whether a field is written that reports name so when it is not used: "a message's tool_calls".
  bool writes(std::string_view reported) const;
};

}  // namespace fastsft
