#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// The call ids that a template needs. kAny: made of nine letters and digits. kShort: as kAny, and
// ids of other lengths, which Mistral's templates refuse, are replaced. kNamed:
// "functions.NAME:NUMBER", which Kimi's models write in place of the name.
enum class CallIdForm { kNone, kAny, kShort, kNamed };

// Adds missing ids to the calls and results of one conversation. Ids depend on the calls alone; a
// result gets the id of the first call that has no result yet.
class CallIds {
 public:
  explicit CallIds(CallIdForm form) : form_(form) {}

  // Returns "tool_calls" with an id in each call, or `calls` itself if it is no list of calls.
  // `of_results`: ids of the messages that answer them, in order, as JSON; "" for a message without
  // id. `again`: the same reply as in the last call, with more calls joined to it.
  std::string of_calls(const std::string& calls, const std::vector<std::string>& of_results,
                       bool again = false);
  // Returns the id of the next result as JSON. `given`: the id that it has, or "".
  std::string of_result(const std::string& given);

  bool has_made_one() const { return has_made_one_; }

 private:
  std::string make(std::string_view call);
  std::string settle(std::string_view call, const std::string& own, const std::string& of_result);

  CallIdForm form_;
  size_t num_calls_ = 0, num_before_ = 0;  // of all replies, and of those before the last one
  std::deque<std::string> open_;           // ids of calls that are not answered yet, as JSON
  bool has_made_one_ = false;
};

}  // namespace fastsft
