#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/dialogue.h"

namespace fastsft {

// Which role a record means by a name.
class RoleNames {
 public:
  // FastChat's two names, "human" and "gpt".
  RoleNames();
  // With `aliases` also "user", "assistant", "chatgpt" and so on (docs/spec/fastchat_labels.md,
  // section 6.3). `role_map` adds names; its values are roles or other known names. Throws
  // std::invalid_argument for a value that is none.
  RoleNames(bool aliases, const std::map<std::string, std::string>& role_map);

  std::optional<Role> find(const std::string& name) const;

 private:
  std::map<std::string, Role, std::less<>> roles_;
};

}  // namespace fastsft
