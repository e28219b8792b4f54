#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

enum class Role { kUser, kAssistant, kSystem, kTool };

// Returns the usual word: "user", "assistant", "system" or "tool".
const char* name_of(Role role);

// A message in a Dialogue.
struct DialogueMessage {
  Role role = Role::kUser;
  std::string_view text;
  bool is_learned = false;  // only replies can be learned
  // JSON object with further fields that the model's own chat template reads; empty for none.
  std::string_view more;
  bool calls_tool = false;
  bool has_call = false;  // the record's message calls a tool, even if the template writes no calls
  // First and last index among the record's messages for `text`; they differ if messages were
  // joined.
  size_t first = 0, last = 0;
};

// A conversation that templates can render, in valid UTF-8. User and assistant alternate, with tool
// messages between them if the template supports tools. Texts point into the record or into
// `owned`.
struct Dialogue {
  std::optional<std::string_view> system;  // the record's own system text
  std::string_view tools;                  // JSON for the model's own template, or empty
  std::string_view variables;              // likewise (RecordNotes)
  std::vector<DialogueMessage> messages;
  bool is_text = false;  // the record is a plain text, which is the only message
  std::deque<std::string> owned;

  Dialogue() = default;
  Dialogue(Dialogue&&) = default;
  Dialogue& operator=(Dialogue&&) = default;
};

}  // namespace fastsft
