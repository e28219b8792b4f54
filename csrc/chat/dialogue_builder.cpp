#include "chat/dialogue_builder.h"

#include <algorithm>

#include "chat/call_text.h"
#include "chat/dialogue_work.h"
#include "chat/issue.h"
#include "chat/train_mark.h"
#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/unicode/unicode.h"

namespace fastsft {
namespace {

std::string unknown_role(const Message& message) {
  const Value& from = message.from;
  if (is_call_role(from.text) && message.value.is_text()) {
    return concat("the text of role ", from.text, " is no call; expected JSON, {\"name\": ..., ",
                  "\"arguments\": {...}} or a list of such, and thoughts in <think> before it");
  }
  if (from.kind == ValueKind::kMissing) return "message has no \"from\" and no \"role\"";
  if (!from.is_text()) return concat("role is ", describe(from.kind), "; expected text");
  return concat("role \"", printable(from.text), "\" is unknown; --role_map can name it");
}

bool leaves_thoughts_open(std::string_view text) {
  const size_t begin = text.rfind("<think>");
  return begin != text.npos && text.find("</think>", begin) == text.npos;
}

// True if the message has a JSON value in place of a text, unless the value is a list with parts
// such as images.
bool is_json_result(const Message& message) {
  const Value& value = message.value;
  const bool has_parts = value.kind == ValueKind::kArray && !value.text.empty();
  return message.extras != nullptr && !message.extras->content.empty() && !has_parts;
}

}  // namespace

DialogueBuilder::DialogueBuilder(const LabelOptions& options, Place place)
    : roles_(true, options.role_map),
      train_turns_(options.train_turns),
      learn_(options.learn),
      learns_calls_(options.learn_tool_calls),
      default_system_(options.default_system),
      repairs_(options.on_bad_sample == OnBadSample::kRepair),
      place_(place),
      fields_(options.template_fields) {}

bool DialogueBuilder::is_empty(std::string_view text) const {
  return place_.strips ? strip_left(text).empty() : text.empty();
}

// A reply that only calls tools needs no text, and a tool's result may be empty.
bool DialogueBuilder::lacks_text(const DialogueMessage& message) const {
  return is_empty(message.text) && message.role != Role::kTool && !message.calls_tool;
}

DialogueMessage DialogueBuilder::make_message(Work& work, size_t index, Role role,
                                              std::string_view text) const {
  const Message& source = work.conversation.messages[index];
  const bool is_reply = role == Role::kAssistant, calls = is_reply && calls_tool(source);
  DialogueMessage message{.role = role, .text = text, .first = index, .last = index};
  message.has_call = calls;
  message.calls_tool = calls && fields_.calls;
  message.is_learned =
      is_reply && calls == message.calls_tool && work.is_trained(index, learn_ == Learn::kMarked);
  const bool needs_id = role == Role::kTool && fields_.call_ids != CallIdForm::kNone;
  if (source.extras == nullptr && !needs_id) return message;
  if (std::string more = more_of(work, work.extras_of(index), index, role); !more.empty()) {
    message.more = work.own_text(std::move(more));
  }
  return message;
}

bool DialogueBuilder::accept_record(Work& work) const {
  const Conversation& record = work.conversation;
  if (record.read_fault != ReadError::kNone) {
    return work.exclude(issue_of(record.read_fault), record.read_reason);
  }
  if (record.kind != ValueKind::kObject) {
    return work.exclude(Issue::kNotAnObject,
                        concat("record is not an object but ", describe(record.kind)));
  }
  if (record.messages_kind == ValueKind::kMissing) {
    const bool is_named = record.shape == RecordShape::kColumn;
    const std::string names =
        is_named ? concat("\"", list_name(record), "\"") : "\"conversations\" and no \"messages\"";
    return work.exclude(Issue::kNoConversations, concat("no ", names, notes_of(record).hint));
  }
  if (record.messages_kind != ValueKind::kArray) {
    return work.exclude(Issue::kNoConversations, explain_list(record));
  }
  if (record.messages_empty) return work.exclude(Issue::kEmptyConversation, "empty conversation");
  return true;
}

// Returns true if a message of `role` may come next. User and assistant must alternate; tool
// results may stand between replies.
bool DialogueBuilder::follows(const Work& work, Role role) const {
  const DialogueMessage* last = work.last_speaker();
  if (last == nullptr) return role == Role::kUser;
  switch (last->role) {
    case Role::kUser:
      return role == Role::kAssistant;
    case Role::kAssistant:
      return role == Role::kUser || role == Role::kTool;
    default:
      return role == Role::kAssistant || role == Role::kTool;
  }
}

bool DialogueBuilder::add_system(Work& work, size_t index, std::string_view text) const {
  Dialogue& dialogue = work.dialogue;
  if (is_empty(text) && (index == 0 || place_.for_tools)) return true;
  if (index == 0) {
    work.has_two_systems = dialogue.system && *dialogue.system != text;
    dialogue.system = text;
    return true;
  }
  if (repairs_ && join_system(work, index, text)) return true;
  if (!place_.for_tools) {
    return work.stop(
        Issue::kBrokenAlternation, index,
        "a system message that is not the first message, and this chat template has one "
        "in front of the others; a model's own may have more (--template model)");
  }
  if (!dialogue.system && dialogue.messages.empty()) {
    dialogue.system = text;
    return true;
  }
  if (!(work.last_speaker() == nullptr ? fields_.second_system : fields_.later_system)) {
    work.note(Issue::kSystemIgnored, Outcome::kNoted, index,
              "the chat template writes no system message at this place");
  }
  work.joined = nullptr;
  dialogue.messages.push_back({.role = Role::kSystem, .text = text, .first = index, .last = index});
  return true;
}

// Joins a system text to the system message directly before it, if there is one.
bool DialogueBuilder::join_system(Work& work, size_t index, std::string_view text) const {
  Dialogue& dialogue = work.dialogue;
  const bool is_first = dialogue.messages.empty() && dialogue.system;
  if (!is_first && (dialogue.messages.empty() || dialogue.messages.back().role != Role::kSystem)) {
    return false;
  }
  work.note(Issue::kJoinedMessages, Outcome::kSalvaged, index,
            "joined to the message of role system before it");
  if (is_first) {
    dialogue.system = work.own_text(concat(*dialogue.system, "\n\n", text));
  } else {
    work.join(text, index);
  }
  return true;
}

bool DialogueBuilder::add_message(Work& work, size_t index, Role role,
                                  std::string_view text) const {
  auto& messages = work.dialogue.messages;
  if (role == Role::kAssistant && join_call(work, index)) return true;
  work.joined_extras.reset();
  const DialogueMessage message = make_message(work, index, role, text);
  if (message.has_call && !fields_.calls) note_lost_call(work, index, text);
  if (repairs_ && !messages.empty() && messages.back().role == role && role != Role::kTool &&
      message.more.empty() && messages.back().more.empty()) {
    const bool differ = messages.back().is_learned != message.is_learned;
    work.note(Issue::kJoinedMessages, Outcome::kSalvaged, index,
              concat("joined to the message of role ", name_of(role), " before it",
                     differ ? "; one of the two is not to be learned, so that neither is" : ""));
    work.join(text, index);
    if (differ) messages.back().is_learned = false;
    return true;
  }
  const bool may_skip = role == Role::kAssistant && work.last_speaker() == nullptr;
  if (may_skip && (repairs_ || !work.skipped_first)) {
    if (!work.skipped_first) {
      work.note(Issue::kStartsWithAssistant, Outcome::kSalvaged, index,
                "starts with the assistant");
    }
    return work.skipped_first = true;
  }
  if (!follows(work, role)) {
    const DialogueMessage* last = work.last_speaker();
    const std::string before = last == nullptr ? "the start" : name_of(last->role);
    return work.stop(Issue::kBrokenAlternation, index,
                     concat("a message of role ", name_of(role), " after ", before,
                            "; user and assistant must alternate"));
  }
  work.joined = nullptr;
  messages.push_back(message);
  if (role == Role::kAssistant && leaves_thoughts_open(text)) {
    work.note(Issue::kUnclosedThoughts, Outcome::kNoted, index,
              "<think> without </think>: the text is kept as it is");
  }
  return true;
}

// Adds a message to the dialogue. Returns false at an error, which ends the dialogue before this
// message.
bool DialogueBuilder::accept_message(Work& work, size_t index) const {
  const Message& message = work.conversation.messages[index];
  if (message.kind != ValueKind::kObject) {
    return work.stop(Issue::kBadMessage, index, explain_kind(message));
  }
  auto role = message.from.is_text() ? roles_.find(message.from.text) : std::nullopt;
  const bool calls = is_call(message);
  if (calls) role = Role::kAssistant;
  if (message.from.kind == ValueKind::kMissing) {
    return work.stop(Issue::kBadMessage, index,
                     concat(unknown_role(message), notes_of(work.conversation).hint));
  }
  if (!role) return work.stop(Issue::kUnknownRole, index, unknown_role(message));
  if (role == Role::kTool && !place_.for_tools) {
    return work.stop(
        Issue::kUnknownRole, index,
        "this chat template has no messages of role tool; a model's own may (--template model)");
  }
  const Value& value = message.value;
  if (value.kind == ValueKind::kMissing && !calls_tool(message)) {
    return work.stop(Issue::kBadMessage, index, "message has no \"value\" and no \"content\"");
  }
  std::string_view text = calls ? call_thoughts(message) : std::string_view(value.text);
  if (*role == Role::kTool && is_json_result(message)) {
    text = message.extras->content;
    work.note(Issue::kResultNotText, Outcome::kNoted, index,
              concat("what the tool gave is ", describe(value.kind), "; its JSON is the text"));
  } else if (value.is_true && !value.is_text() && !value.is_text_parts) {
    return work.stop(Issue::kNotText, index, concat("text is ", describe(value.kind)));
  }
  if (find_invalid_utf8(text) != std::string_view::npos) {
    work.note(Issue::kLoneSurrogate, Outcome::kSalvaged, index, "lone surrogate in text");
    text = work.own_text(replace_invalid_utf8(text));
  }
  return *role == Role::kSystem ? add_system(work, index, text)
                                : add_message(work, index, *role, text);
}

// Reports that the record's own system text is not used.
void DialogueBuilder::note_system(Work& work) const {
  const Value& own = work.conversation.system;
  const auto note = [&](std::string reason) {
    work.findings.push_back({Issue::kSystemIgnored, Outcome::kNoted, -1, std::move(reason)});
  };
  if (own.is_true && !own.is_text()) {
    note(concat("\"system\" is ", describe(own.kind), "; expected text"));
  } else if (work.has_two_systems) {
    note("the system message stands in place of the record's \"system\"");
  }
}

// Reads the messages into the dialogue. Returns false if no reply is left to choose from.
bool DialogueBuilder::read(Work& work) const {
  const Conversation& conversation = work.conversation;
  Dialogue& dialogue = work.dialogue;
  std::vector<RecordIssue>& findings = work.findings;
  if (fields_.call_ids != CallIdForm::kNone) work.ids.emplace(fields_.call_ids);
  if (fields_.tools) dialogue.tools = notes_of(conversation).tools;
  if (fields_.variables) dialogue.variables = notes_of(conversation).variables;
  if (conversation.system.is_text() && !is_empty(conversation.system.text)) {
    dialogue.system = conversation.system.text;
    if (find_invalid_utf8(conversation.system.text) != std::string_view::npos) {
      findings.push_back({Issue::kLoneSurrogate, Outcome::kSalvaged, -1, "lone surrogate in text"});
      dialogue.system = work.own_text(replace_invalid_utf8(conversation.system.text));
    }
  }
  for (size_t i = 0; i < conversation.messages.size() && accept_message(work, i); ++i) {
  }
  if (!dialogue.system && !default_system_.empty()) dialogue.system = default_system_;
  if (dialogue.messages.empty() && work.skipped_first && findings.size() == 1) {
    findings.front() = {Issue::kAssistantOnly, Outcome::kExcluded, -1, "no user message"};
    return false;
  }
  remove_incomplete_turns(work);
  choose_replies(dialogue.messages);
  note_calls(work);
  return true;
}

void DialogueBuilder::build(const Conversation& conversation, Dialogue& dialogue,
                            std::vector<RecordIssue>& findings) const {
  dialogue = Dialogue();
  Work work{conversation, dialogue, findings};
  if (!accept_record(work)) return;
  if (conversation.shape == RecordShape::kText) return build_text(work);
  if (!read(work)) return;
  choose_learned(work);
  if (dialogue.messages.empty() && findings.empty()) {
    work.exclude(Issue::kAssistantOnly, "no user message");
  }
  if (!dialogue.messages.empty()) note_system(work);
}

std::optional<RecordIssue> DialogueBuilder::find_bad_mark(const Conversation& conversation) const {
  const bool needs_mark = learn_ == Learn::kMarked;
  return fastsft::find_bad_mark(conversation, roles_,
                                needs_mark ? MarkUse::kNeeded : MarkUse::kFollowed);
}

std::vector<size_t> DialogueBuilder::reply_ends(const Conversation& conversation) const {
  Dialogue dialogue;
  std::vector<RecordIssue> findings;
  Work work{conversation, dialogue, findings};
  std::vector<size_t> ends;
  if (!accept_record(work) || conversation.shape == RecordShape::kText || !read(work)) return ends;
  for (const DialogueMessage& message : dialogue.messages) {
    if (message.is_learned) ends.push_back(message.last);
  }
  return ends;
}

void DialogueBuilder::build_text(Work& work) const {
  const Value& value = work.conversation.messages.front().value;
  if (!value.is_text()) {
    return (void)work.exclude(Issue::kNotText, concat("\"text\" is ", describe(value.kind)));
  }
  if (value.text.empty()) return (void)work.exclude(Issue::kEmptyLastReply, "empty text");
  std::string_view text = value.text;
  if (find_invalid_utf8(text) != std::string_view::npos) {
    work.note(Issue::kLoneSurrogate, Outcome::kSalvaged, 0, "lone surrogate in text");
    text = work.own_text(replace_invalid_utf8(text));
  }
  if (!work.is_trained(0, learn_ == Learn::kMarked)) {
    return (void)work.exclude(Issue::kNotTrained, learn_ == Learn::kMarked
                                                      ? "it has no \"train\": true (--learn marked)"
                                                      : "it is not to be learned");
  }
  work.dialogue.messages.push_back({Role::kAssistant, text, true});
  work.dialogue.is_text = true;
}

}  // namespace fastsft
