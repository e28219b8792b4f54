#include <algorithm>

#include "chat/call_text.h"
#include "chat/dialogue_work.h"
#include "core/error.h"

// The part of DialogueBuilder that handles tool calls.

namespace fastsft {

// Returns the further fields that the template writes for a message, as JSON. `extras`: the fields
// in the message and in all messages joined to it. `index`: the last such message.
std::string DialogueBuilder::more_of(Work& work, const MessageExtras& extras, size_t index,
                                     Role role) const {
  if (!work.ids) return fields_.json_of(extras, role);
  MessageExtras own = extras;
  if (role == Role::kTool) own.call_id = work.ids->of_result(own.call_id);
  if (role == Role::kAssistant && !own.calls.empty()) {
    own.calls =
        work.ids->of_calls(own.calls, result_ids(work, index), work.joined_extras.has_value());
  }
  return fields_.json_of(own, role);
}

// Returns the result ids that answer a reply with calls. `index`: the reply's last message.
std::vector<std::string> DialogueBuilder::result_ids(const Work& work, size_t index) const {
  const auto& messages = work.conversation.messages;
  std::vector<std::string> ids;
  while (++index < messages.size() && messages[index].is_call) {
  }
  for (; index < messages.size() && roles_.find(messages[index].from.text) == Role::kTool;
       ++index) {
    ids.push_back(work.extras_of(index).call_id);
  }
  return ids;
}

// Joins a message that is only a call to the reply before it, as ms-swift does.
bool DialogueBuilder::join_call(Work& work, size_t index) const {
  if (!is_call(work.conversation.messages[index]) || work.dialogue.messages.empty()) return false;
  DialogueMessage& reply = work.dialogue.messages.back();
  if (reply.role != Role::kAssistant) return false;
  MessageExtras joined = work.joined_extras.value_or(work.extras_of(reply.last));
  const MessageExtras& own = work.extras_of(index);
  const bool thinks = !own.reasoning.empty();
  if (thinks && (!joined.reasoning.empty() || reply.has_call)) return false;
  joined.calls = joined.calls.empty() ? own.calls : join_calls(joined.calls, own.calls);
  if (joined.calls.empty()) return false;
  if (thinks) joined.reasoning = own.reasoning;
  work.joined_extras = std::move(joined);
  reply.last = index;
  reply.has_call = true;
  reply.calls_tool = fields_.calls;
  reply.is_learned =
      fields_.calls && reply.is_learned && work.is_trained(index, learn_ == Learn::kMarked);
  if (!fields_.calls) note_lost_call(work, reply.first, reply.text);
  reply.more = work.own_text(more_of(work, *work.joined_extras, index, Role::kAssistant));
  return true;
}

// Reports that a reply is not learned because the template does not write its tool call: learning
// the reply's end would teach the model to stop before the call.
void DialogueBuilder::note_lost_call(Work& work, size_t index, std::string_view text) const {
  if (is_empty(text)) return;
  work.note(Issue::kToolCall, Outcome::kSalvaged, index,
            "a reply that calls a tool: its text is not learned");
}

// Returns the thoughts that come before a call in the message's text, if the template has no field
// for thoughts.
std::string_view DialogueBuilder::call_thoughts(const Message& message) const {
  if (!fields_.calls || fields_.reasoning || message.extras->reasoning.empty()) return {};
  return read_call_text(message.value.text).thoughts;
}

// Reports replies with calls if the number of results after them differs from the number of calls.
void DialogueBuilder::note_calls(Work& work) const {
  const auto& messages = work.dialogue.messages;
  for (size_t i = 0; i + 1 < messages.size(); ++i) {
    if (!messages[i].calls_tool) continue;
    size_t num_calls = 0, num_results = 0;
    for (size_t k = messages[i].first; k <= messages[i].last; ++k) {
      const std::string& calls = work.extras_of(k).calls;
      num_calls += calls.empty() ? 0 : count_calls(calls);
    }
    for (size_t k = i + 1; k < messages.size() && messages[k].role == Role::kTool; ++k) {
      ++num_results;
    }
    if (num_results == num_calls) continue;
    work.note(Issue::kCallWithoutResult, Outcome::kNoted, messages[i].first,
              concat("calls a tool ", num_calls, num_calls == 1 ? " time" : " times", ", and ",
                     num_results, num_results == 1 ? " result follows" : " results follow"));
  }
  const auto last = std::ranges::find_if(messages.rbegin(), messages.rend(),
                                         [](const auto& each) { return each.calls_tool; });
  if (last != messages.rend() && work.ids && work.ids->has_made_one()) {
    work.note(Issue::kCallIds, Outcome::kNoted, last->first,
              "the template wants ids of calls, and they were made here");
  }
}

}  // namespace fastsft
