#include "chat/reply_fields.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "chat/issue.h"
#include "chat/message_fields.h"
#include "core/error.h"

namespace fastsft {
namespace {

constexpr std::array<std::string_view, 5> kReplies = {"completion", "response", "output", "answer",
                                                      "target"};
constexpr std::array<std::string_view, 6> kPrompts = {"prompt",   "input",   "query",
                                                      "question", "history", "context"};

bool is_usual(const FieldSketch& field) {
  return field.name == "conversations" || field.name == "messages";
}

// Returns the message list that would be read as the conversation; null if there is none or more
// than one.
const FieldSketch* find_list(const RecordSketch& record) {
  std::vector<const FieldSketch*> found;
  for (const char* name : {"conversations", "messages"}) {
    const FieldSketch* field = record.find(name);
    if (field != nullptr && field->messages) return field;
  }
  for (const FieldSketch& field : record.fields) {
    const bool is_reply = is_reply_name(field.name) && !field.awaits_reply;
    if (field.messages && record.find(field.name) == &field && !is_reply) found.push_back(&field);
  }
  return found.size() == 1 ? found.front() : nullptr;
}

// Returns true if the field may be the reply to `list`. If the list is a prompt, any field with
// such a name may be. If the list may be the whole conversation, empty values and numbers are not
// replies but statements about it.
bool may_be_reply(const FieldSketch& field, const FieldSketch& list) {
  if (is_prompt_name(list.name)) return true;
  const bool is_text_or_list = field.kind == ValueKind::kString ||
                               field.kind == ValueKind::kArray || field.kind == ValueKind::kObject;
  return is_text_or_list && !field.is_nothing;
}

std::vector<const FieldSketch*> find_replies(const RecordSketch& record, const FieldSketch& list) {
  std::vector<const FieldSketch*> replies;
  for (const std::string_view name : kReplies) {
    const FieldSketch* field = record.find(std::string(name));
    const bool is_other = field != nullptr && field != &list;
    if (is_other && may_be_reply(*field, list)) replies.push_back(field);
  }
  return replies;
}

// Explains why `list`, which does not end with the user, is not a prompt for `replies`.
std::string refuse_prompt(const FieldSketch& list, const std::string& replies) {
  const std::string name = concat("the messages of \"", printable(list.name), "\" ");
  if (!list.ends_with_reply) {
    return concat(name, "do not end with the user, whom ", replies,
                  " could answer; expected a prompt that ends with a message of the user");
  }
  return concat(name, "end with a reply, and ", replies,
                " may be another: which is to be learned is not clear; write all turns as one "
                "list, \"messages\"");
}

bool is_reply(const FieldSketch& field) {
  return field.kind == ValueKind::kString || field.messages.has_value();
}

std::string join_names(const std::vector<const FieldSketch*>& fields) {
  std::string names;
  for (const FieldSketch* field : fields) {
    names += concat(names.empty() ? "" : " and ", "\"", field->name, "\"");
  }
  return names;
}

}  // namespace

ReplyFields ReplyFields::of_column(const std::string& column) {
  const size_t at = column.rfind('/');
  if (at == std::string::npos) return {"prompt", "completion"};
  return {column.substr(0, at), column.substr(at + 1)};
}

bool is_reply_name(const std::string& name) {
  return std::ranges::find(kReplies, name) != kReplies.end();
}

bool is_prompt_name(const std::string& name) {
  return std::ranges::find(kPrompts, name) != kPrompts.end();
}

std::optional<ReplyFields> find_reply_fields(const RecordSketch& record) {
  const FieldSketch* list = find_list(record);
  if (list == nullptr || !list->awaits_reply) return std::nullopt;
  const auto replies = find_replies(record, *list);
  if (replies.size() != 1 || !is_reply(*replies.front())) return std::nullopt;
  return ReplyFields{list->name, replies.front()->name};
}

bool is_doubtful_prompt(const RecordSketch& record) {
  const FieldSketch* list = find_list(record);
  if (list == nullptr || is_prompt_name(list->name)) return false;
  return list->awaits_reply && list->holds_reply && !find_replies(record, *list).empty();
}

std::string refuse_replies(const RecordSketch& record) {
  const FieldSketch* list = find_list(record);
  const bool is_named = record.has("prompt") && record.has("completion");
  if (list == nullptr || (is_named && !is_usual(*list))) return {};
  const auto replies = find_replies(record, *list);
  if (replies.empty()) return {};
  if (!list->awaits_reply) {
    return is_prompt_name(list->name) ? refuse_prompt(*list, join_names(replies)) : std::string();
  }
  const std::string name = concat("\"", printable(list->name), "\"");
  if (is_doubtful_prompt(record)) {
    const bool is_sharegpt = list->messages == MessageNames::kFromValue;
    return concat(
        "the messages of ", name, " hold replies and end with the user, and ", join_names(replies),
        " may be the reply: which is to be learned is not clear; ", "--data_format ",
        is_sharegpt ? "sharegpt" : "messages",
        " learns the replies that the list holds; for a reply in a field of its own name ",
        "the list \"prompt\" and the reply \"completion\"");
  }
  const char* rename = "; name the list \"prompt\" and the reply to it \"completion\"";
  if (replies.size() > 1) {
    return concat("the messages of ", name, " end with the user, and ", join_names(replies),
                  " may be the reply: which is to be learned is not clear", rename);
  }
  if (is_reply(*replies.front())) return {};
  return concat(
      "the messages of ", name, " end with the user, and ", join_names(replies), " is ",
      describe(replies.front()->kind),
      "; expected text or a list of messages: write the reply as one of them, or leave the ",
      "field out");
}

}  // namespace fastsft
