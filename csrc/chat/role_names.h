#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/dialogue.h"

namespace fastsft {

// A table from the names in the data to roles.
class RoleNames {
 public:
  // Knows only FastChat's names, "human" and "gpt".
  RoleNames();
  // With `aliases`, knows also "user", "assistant", "chatgpt" and so on
  // (docs/spec/fastchat_labels.md, section 6.3). `role_map` adds names; its values are roles or
  // other known names. Throws std::invalid_argument for any other value.
  RoleNames(bool aliases, const std::map<std::string, std::string>& role_map);

  std::optional<Role> find(const std::string& name) const;

 private:
  std::map<std::string, Role, std::less<>> roles_;
};

}  // namespace fastsft
