#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace fastsft {

// The ids that a template needs of calls. kAny: made of nine letters and digits. kShort: the same,
// and others than those of nine characters, which Mistral's templates refuse, are replaced. kNamed:
// "functions.NAME:NUMBER", as Kimi's models write them in place of the name.
enum class CallIdForm { kNone, kAny, kShort, kNamed };

// Gives ids to the calls and results of one conversation that have none. They depend on nothing but
// the calls, and a result gets the id of its call: the first one that is not answered yet.
class CallIds {
 public:
  explicit CallIds(CallIdForm form) : form_(form) {}

  // "tool_calls" with an id in each call. `of_results`: the ids of the messages that answer them,
  // in order, as JSON; "" for one without. What is no list of calls stays as it is.
  // `again`: of the same reply as the last time, to which calls were joined.
  std::string of_calls(const std::string& calls, const std::vector<std::string>& of_results,
                       bool again = false);
  // The id of the next result as JSON; `given`: its own, or "".
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
