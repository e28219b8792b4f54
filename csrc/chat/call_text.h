#pragma once

#include <string>
#include <string_view>

namespace fastsft {

// A reply that calls tools, written as text: LLaMA-Factory's role "function_call" and ms-swift's
// "tool_call". The text is a call as JSON or a list of calls, perhaps with thoughts before it.
struct CallText {
  std::string calls;          // as a message's "tool_calls"; empty for a text that is no call
  std::string reasoning;      // the thoughts as a JSON string; empty for none
  std::string_view thoughts;  // their part of the text, marks included
};

bool is_call_role(std::string_view name);

// `text` must outlive the result.
CallText read_call_text(std::string_view text);

// Joins two lists of calls; empty if either is no list.
std::string join_calls(std::string_view first, std::string_view second);

// Number of calls in "tool_calls", a list or the JSON text of a list; 1 for anything else.
size_t count_calls(std::string_view calls);

}  // namespace fastsft
