#include "chat/mark_check.h"

#include <string>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr const char* kNotFollowed =
    "FastChat's labels learn every reply; --mask_policy spans leaves this one out, and without the "
    "field it is learned";

Finding refuse(int64_t message, const TrainMark& mark, const std::string& reason) {
  return {Remark::kBadMark, Action::kExcluded, message,
          concat("\"", mark.field, "\" is ", mark.value, ": ", reason)};
}

std::optional<Role> role_of(const Message& message, const RoleNames& roles) {
  if (message.is_call) return Role::kAssistant;
  return message.from.is_text() ? roles.find(message.from.text) : std::nullopt;
}

// Whether a message wants to be learned.
bool is_wanted(const Conversation& record, const Message& message) {
  const TrainMark* mark = message.mark ? message.mark.get() : record.mark.get();
  return mark == nullptr || mark->is_learned;
}

// Of a call that is part of the reply before it (DialogueBuilder), and is marked otherwise.
std::optional<Finding> find_divided_reply(const Conversation& record, const RoleNames& roles,
                                          size_t index) {
  const Message& call = record.messages[index];
  if (!call.is_call || index == 0) return std::nullopt;
  const Message& before = record.messages[index - 1];
  if (role_of(before, roles) != Role::kAssistant) return std::nullopt;
  if (is_wanted(record, before) == is_wanted(record, call)) return std::nullopt;
  const TrainMark& mark = call.mark ? *call.mark : *before.mark;
  return refuse(
      static_cast<int64_t>(call.mark ? index : index - 1), mark,
      "the call is part of the reply before it, of which the other part says the opposite; "
      "mark both alike");
}

std::string explain_role(Role role) {
  if (role == Role::kAssistant) {
    return "it is a reply of the prompt, of which nothing is learned; write the turns as one list, "
           "\"messages\", or leave the field out";
  }
  return concat("a message of role ", name_of(role), " is context, and only replies are learned; ",
                "leave the field out there, or write the text as one of role assistant");
}

}  // namespace

std::optional<Finding> find_bad_mark(const Conversation& record, const RoleNames& roles,
                                     MarkUse use) {
  const bool follows = use == MarkUse::kFollowed;
  if (const TrainMark* mark = record.mark.get(); mark != nullptr) {
    if (!mark->problem.empty()) return refuse(-1, *mark, mark->problem);
    if (!mark->is_learned && !follows) return refuse(-1, *mark, kNotFollowed);
  }
  for (size_t i = 0; i < record.messages.size(); ++i) {
    const TrainMark* mark = record.messages[i].mark.get();
    if (auto divided = find_divided_reply(record, roles, i)) return divided;
    if (mark == nullptr) continue;
    const auto index = static_cast<int64_t>(i);
    const Message& message = record.messages[i];
    const auto role = role_of(message, roles);
    const bool is_reply = role == Role::kAssistant && !message.is_context;
    if (mark->in_part && role && !is_reply) continue;  // a tool's result: [{"weight": 2.5}]
    if (!mark->problem.empty()) return refuse(index, *mark, mark->problem);
    if (mark->is_learned && role && !is_reply) return refuse(index, *mark, explain_role(*role));
    if (!mark->is_learned && is_reply && !follows) return refuse(index, *mark, kNotFollowed);
  }
  return std::nullopt;
}

}  // namespace fastsft
