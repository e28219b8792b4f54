#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

enum class Role { kUser, kAssistant, kSystem, kTool };

// The field's word: "user", "assistant", "system", "tool".
const char* name_of(Role role);

struct DialogueMessage {
  Role role = Role::kUser;
  std::string_view text;
  bool is_learned = false;  // replies only
  std::string_view more;    // a JSON object of what else the model's own template reads, or empty
  bool calls_tool = false;
  bool has_call = false;  // of the record, also where the template writes none
  // The record's messages that its text is from; several where neighbours were joined.
  size_t first = 0, last = 0;
};

// A conversation that templates can render: user and assistant in turn, with tool messages between
// them if the template supports them, in valid UTF-8. Texts point into the record or into `owned`.
struct Dialogue {
  std::optional<std::string_view> system;  // the record's own system text
  std::string_view tools;                  // JSON, for the model's own template; or empty
  std::vector<DialogueMessage> messages;
  bool is_text = false;  // no conversation: its one message is the record's text
  std::deque<std::string> owned;

  Dialogue() = default;
  Dialogue(Dialogue&&) = default;
  Dialogue& operator=(Dialogue&&) = default;
};

}  // namespace fastsft
