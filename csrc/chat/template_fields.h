#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/call_ids.h"
#include "chat/conversation.h"
#include "chat/dialogue.h"

namespace fastsft {

// The fields that a chat template writes next to roles and texts. Only a model's own template may
// write such fields.
struct TemplateFields {
  bool tools = false;      // the record's "tools"
  bool variables = false;  // the record's "chat_template_kwargs"
  bool calls = false;      // "tool_calls", and the fields "tool_call_id" and "name" in tool results
  bool reasoning = false;  // "reasoning_content", under any of its names
  CallIdForm call_ids = CallIdForm::kNone;  // the call id form that the template needs
  // System messages: a second one after the first, and one after a reply.
  bool second_system = false, later_system = false;

  // Names with this prefix stand for single variables: "chat_template_kwargs.enable_thinking".
  static constexpr std::string_view kVariable = "chat_template_kwargs.";

  // Sets the fields from names: "tools", "chat_template_kwargs", "tool_calls", "reasoning_content",
  // "call_ids" or "short_call_ids" or "named_call_ids", "second_system" and "later_system". A name
  // with the prefix `kVariable` is a variable that the template may read.
  explicit TemplateFields(const std::vector<std::string>& names);

  // True for a name that thoughts can have: "reasoning_content", "reasoning" (vLLM, Gemma) and
  // "thinking" (gpt-oss, Ollama).
  static bool is_reasoning(std::string_view name);

  // Returns the fields that the template writes for a message with role `role`, as a JSON object;
  // "" if there are none.
  std::string json_of(const MessageExtras& extras, Role role) const;
  // Returns true if the template writes a field that reports would otherwise list as unused under
  // the name `reported`, such as "a message's tool_calls".
  bool writes(std::string_view reported) const;

 private:
  std::set<std::string, std::less<>> read_;  // names of variables, with the prefix
};

}  // namespace fastsft
