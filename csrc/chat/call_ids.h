#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// The call ids that a chat template needs. kAny: any id; a missing id is made of nine letters and
// digits. kShort: like kAny, but ids that do not have nine characters are replaced, because
// Mistral's templates refuse them. kNamed: "functions.NAME:NUMBER", which Kimi's models write in
// place of the function's name.
enum class CallIdForm { kNone, kAny, kShort, kNamed };

// Adds missing ids to the tool calls and tool results of one conversation. The new ids depend on
// the calls alone. A result without id gets the id of the first call that has no result yet.
class CallIds {
 public:
  explicit CallIds(CallIdForm form) : form_(form) {}

  // Returns the JSON `calls` ("tool_calls") with an id in each call. Returns `calls` unchanged if
  // `calls` is not a list of calls.
  // `of_results`: ids of the tool messages that answer the calls, in order, as JSON; "" for a tool
  // message without id. `again`: `calls` extends the list of the previous call to this function,
  // because another message was joined to the same reply.
  std::string of_calls(const std::string& calls, const std::vector<std::string>& of_results,
                       bool again = false);
  // Returns the id of the next tool result as JSON. `given`: the result's id in the data, or "".
  std::string of_result(const std::string& given);

  bool has_made_one() const { return has_made_one_; }

 private:
  std::string make(std::string_view call);
  std::string settle(std::string_view call, const std::string& own, const std::string& of_result);

  CallIdForm form_;
  // Number of calls in all replies, and in all replies before the last.
  size_t num_calls_ = 0, num_before_ = 0;
  std::deque<std::string> open_;  // ids of calls without a result so far, as JSON
  bool has_made_one_ = false;
};

}  // namespace fastsft
