#include "chat/role_names.h"

#include "core/error.h"

namespace fastsft {
namespace {

using Names = std::map<std::string, Role, std::less<>>;

const Names& all_aliases() {
  using enum Role;
  static const Names names = {
      {"human", kUser},     {"user", kUser},           {"prompter", kUser},
      {"gpt", kAssistant},  {"assistant", kAssistant}, {"chatgpt", kAssistant},
      {"bing", kAssistant}, {"bard", kAssistant},      {"model", kAssistant},
      {"bot", kAssistant},  {"system", kSystem},       {"developer", kSystem},
      {"tool", kTool},      {"function", kTool},       {"observation", kTool},
      {"ipython", kTool},   {"tool_response", kTool},  {"function_response", kTool}};
  return names;
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kSystem:
      return "system";
    case Role::kTool:
      return "tool";
  }
  return "none";
}

RoleNames::RoleNames() : roles_{{"human", Role::kUser}, {"gpt", Role::kAssistant}} {}

RoleNames::RoleNames(bool aliases, const std::map<std::string, std::string>& role_map)
    : RoleNames() {
  if (aliases) roles_ = all_aliases();
  for (const auto& [name, role] : role_map) {
    const auto found = all_aliases().find(role);
    require(found != all_aliases().end(), "--role_map: \"", role, "\" for \"", name,
            "\" is no role; expected user, assistant, system or tool");
    roles_[name] = found->second;
  }
}

std::optional<Role> RoleNames::find(const std::string& name) const {
  const auto found = roles_.find(name);
  if (found == roles_.end()) return std::nullopt;
  return found->second;
}

}  // namespace fastsft
