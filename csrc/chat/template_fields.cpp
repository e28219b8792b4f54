#include "chat/template_fields.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr std::string_view kTools = "tools", kCalls = "tool_calls",
                           kReasoning = "reasoning_content", kVariables = "chat_template_kwargs",
                           kThinking = "enable_thinking";

}  // namespace

TemplateFields::TemplateFields(const std::vector<std::string>& names) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  tools = has(kTools);
  variables = has(kVariables);
  calls = has(kCalls);
  reasoning = has(kReasoning);
  if (has("call_ids")) call_ids = CallIdForm::kAny;
  if (has("short_call_ids")) call_ids = CallIdForm::kShort;
  if (has("named_call_ids")) call_ids = CallIdForm::kNamed;
  second_system = has("second_system");
  later_system = has("later_system");
  std::ranges::copy_if(names, std::inserter(read_, read_.end()),
                       [](const std::string& name) { return name.starts_with(kVariable); });
}

bool TemplateFields::is_reasoning(std::string_view name) {
  return name == kReasoning || name == "reasoning" || name == "thinking";
}

std::string TemplateFields::json_of(const MessageExtras& extras, Role role) const {
  std::string json;
  const auto add = [&](bool is_written, std::string_view name, const std::string& value) {
    if (!is_written || value.empty()) return;
    json += concat(json.empty() ? "{\"" : ", \"", name, "\": ", value);
  };
  const bool is_reply = role == Role::kAssistant, is_result = role == Role::kTool;
  add(reasoning && is_reply, kReasoning, extras.reasoning);
  add(calls && is_reply, kCalls, extras.calls);
  add(calls && is_result, "tool_call_id", extras.call_id);
  add(calls && is_result, "name", extras.name);
  return json.empty() ? json : json + "}";
}

bool TemplateFields::writes(std::string_view reported) const {
  constexpr std::string_view kMessage = "a message's ";
  if (reported == kTools) return tools;
  if (reported == kVariables) return variables;
  if (reported == kThinking) return read_.contains(concat(kVariable, kThinking));
  // A template without variables has the whole object reported instead.
  if (reported.starts_with(kVariable)) return !variables || read_.contains(reported);
  if (!reported.starts_with(kMessage)) return false;
  reported.remove_prefix(kMessage.size());
  if (is_reasoning(reported)) return reasoning;
  return calls && (reported == kCalls || reported == "function_call" ||
                   reported == "tool_call_id" || reported == "name");
}

}  // namespace fastsft
