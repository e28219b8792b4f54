#pragma once

#include <string>
#include <string_view>

namespace fastsft {

// A reply that calls tools, written as a text: LLaMA-Factory's role "function_call" or ms-swift's
// "tool_call". The text is JSON: one call or a list of calls. Thoughts (<think>...</think>) may
// come before the JSON.
struct CallText {
  std::string calls;  // JSON list, as in a message's "tool_calls"; empty if the text holds no call
  std::string reasoning;      // the thoughts as a JSON string; empty if there are none
  std::string_view thoughts;  // the text's bytes that hold the thoughts, with their tags
};

// Returns true for a role whose messages are tool calls (CallText).
bool is_call_role(std::string_view name);

// Parses the text of a message with such a role. `text` must outlive the result.
CallText read_call_text(std::string_view text);

// Joins two JSON lists of calls. Returns "" if either is not a list.
std::string join_calls(std::string_view first, std::string_view second);

// Counts the calls in "tool_calls", which is a list or a string with the list's JSON. Returns 1 for
// any other value.
size_t count_calls(std::string_view calls);

}  // namespace fastsft
