#include "chat/dialogue_builder.h"

#include <algorithm>

#include "chat/data_fault.h"
#include "core/error.h"
#include "core/utf8.h"
#include "tokenizer/special_tokens.h"

namespace fastsft {
namespace {

constexpr std::string_view kBlankLine = "\n\n";

std::string unknown_role(const Value& from) {
  if (from.kind == ValueKind::kMissing) return "message has no \"from\" and no \"role\"";
  if (!from.is_text()) return concat("role is ", describe(from.kind), "; expected text");
  return concat("role \"", printable(from.text), "\" is unknown; --role_map can name it");
}

void cut_after_last_learned(std::vector<DialogueMessage>& messages) {
  const auto last = std::find_if(messages.rbegin(), messages.rend(),
                                 [](const DialogueMessage& message) { return message.is_learned; });
  if (last != messages.rend()) messages.erase(last.base(), messages.end());
}

}  // namespace

struct DialogueBuilder::Work {
  const Conversation& conversation;
  Dialogue& dialogue;
  std::vector<Finding>& findings;
  std::string* joined = nullptr;  // the text of the dialogue's last message, once it was joined
  bool skipped_first = false;
  bool has_two_systems = false;

  bool note(Remark remark, Action action, size_t index, std::string reason) {
    findings.push_back({remark, action, static_cast<int64_t>(index), std::move(reason)});
    return false;
  }
  bool stop(Remark remark, size_t index, std::string reason) {
    return note(remark, Action::kSalvaged, index, std::move(reason));
  }
  bool exclude(Remark remark, std::string reason) {
    findings.push_back({remark, Action::kExcluded, -1, std::move(reason)});
    return false;
  }
  bool is_trained(size_t index) const {
    const ValueKind own = conversation.messages[index].train;
    const bool says_nothing = own == ValueKind::kMissing || own == ValueKind::kNull;
    return (says_nothing ? conversation.train : own) != ValueKind::kFalse;
  }
  std::string_view own_text(std::string text) {
    return dialogue.owned.emplace_back(std::move(text));
  }
  void join(std::string_view text, size_t index) {
    DialogueMessage& last = dialogue.messages.back();
    last.last = index;
    if (joined == nullptr) joined = &dialogue.owned.emplace_back(last.text);
    joined->append(kBlankLine).append(text);
    last.text = *joined;
  }
};

DialogueBuilder::DialogueBuilder(const LabelOptions& options, Place place)
    : roles_(true, options.role_map),
      train_turns_(options.train_turns),
      repairs_(options.on_bad_sample == OnBadSample::kRepair),
      place_(place),
      fields_(options.template_fields) {}

bool DialogueBuilder::is_empty(std::string_view text) const {
  return place_.strips ? strip_left(text).empty() : text.empty();
}

// A reply that only calls tools says something, and what a tool gives back may be nothing.
bool DialogueBuilder::lacks_text(const DialogueMessage& message) const {
  return is_empty(message.text) && message.role != Role::kTool && !message.calls_tool;
}

DialogueMessage DialogueBuilder::make_message(Work& work, size_t index, Role role,
                                              std::string_view text) const {
  const Message& source = work.conversation.messages[index];
  const bool is_reply = role == Role::kAssistant, calls = is_reply && calls_tool(source);
  DialogueMessage message{.role = role, .text = text, .first = index, .last = index};
  message.calls_tool = calls && fields_.calls;
  message.is_learned = is_reply && calls == message.calls_tool && work.is_trained(index);
  if (source.extras == nullptr) return message;
  if (std::string more = fields_.json_of(*source.extras, role); !more.empty()) {
    message.more = work.own_text(std::move(more));
  }
  return message;
}

bool DialogueBuilder::accept_record(Work& work) const {
  const Conversation& record = work.conversation;
  if (record.read_fault != ReadFault::kNone) {
    return work.exclude(remark_of(record.read_fault), record.read_reason);
  }
  if (record.kind != ValueKind::kObject) {
    return work.exclude(Remark::kNotAnObject,
                        concat("record is not an object but ", describe(record.kind)));
  }
  if (record.messages_kind == ValueKind::kMissing) {
    const bool is_named = record.shape == RecordShape::kColumn;
    const std::string names =
        is_named ? concat("\"", list_name(record), "\"") : "\"conversations\" and no \"messages\"";
    return work.exclude(Remark::kNoConversations, concat("no ", names, notes_of(record).hint));
  }
  if (record.messages_kind != ValueKind::kArray) {
    return work.exclude(Remark::kNoConversations,
                        concat("\"", list_name(record), "\" is ", describe(record.messages_kind),
                               "; expected a list of messages"));
  }
  if (record.messages_empty) return work.exclude(Remark::kEmptyConversation, "empty conversation");
  return true;
}

// Whether a message of `role` may come next: user and assistant in turn, tools between replies.
bool DialogueBuilder::follows(const Work& work, Role role) const {
  const auto& messages = work.dialogue.messages;
  if (messages.empty()) return role == Role::kUser;
  switch (messages.back().role) {
    case Role::kUser:
      return role == Role::kAssistant;
    case Role::kAssistant:
      return role == Role::kUser || role == Role::kTool;
    default:
      return role == Role::kAssistant || role == Role::kTool;
  }
}

bool DialogueBuilder::add_system(Work& work, size_t index, std::string_view text) const {
  if (index != 0) {
    return work.stop(Remark::kBrokenAlternation, index,
                     "a system message that is not the first message");
  }
  if (is_empty(text)) return true;
  work.has_two_systems = work.dialogue.system && *work.dialogue.system != text;
  work.dialogue.system = text;
  return true;
}

bool DialogueBuilder::add_message(Work& work, size_t index, Role role,
                                  std::string_view text) const {
  auto& messages = work.dialogue.messages;
  const DialogueMessage message = make_message(work, index, role, text);
  const bool calls = role == Role::kAssistant && calls_tool(work.conversation.messages[index]);
  if (calls && !fields_.calls && !is_empty(text)) {
    // Learned, its end would teach to stop where a call comes.
    work.note(Remark::kToolCall, Action::kSalvaged, index,
              "a reply that calls a tool: its text is not learned");
  }
  if (repairs_ && !messages.empty() && messages.back().role == role && role != Role::kTool &&
      message.more.empty() && messages.back().more.empty()) {
    work.note(Remark::kJoinedMessages, Action::kSalvaged, index,
              concat("joined to the message of role ", name_of(role), " before it"));
    work.join(text, index);
    messages.back().is_learned = messages.back().is_learned && message.is_learned;
    return true;
  }
  const bool may_skip = role == Role::kAssistant && messages.empty();
  if (may_skip && (repairs_ || !work.skipped_first)) {
    if (!work.skipped_first) {
      work.note(Remark::kStartsWithAssistant, Action::kSalvaged, index,
                "starts with the assistant");
    }
    return work.skipped_first = true;
  }
  if (!follows(work, role)) {
    const std::string before = messages.empty() ? "the start" : name_of(messages.back().role);
    return work.stop(Remark::kBrokenAlternation, index,
                     concat("a message of role ", name_of(role), " after ", before,
                            "; user and assistant must alternate"));
  }
  work.joined = nullptr;
  messages.push_back(message);
  return true;
}

// False at a fault: the conversation ends before this message.
bool DialogueBuilder::accept_message(Work& work, size_t index) const {
  const Message& message = work.conversation.messages[index];
  if (message.kind != ValueKind::kObject) {
    return work.stop(Remark::kBadMessage, index, explain_kind(message));
  }
  auto role = message.from.is_text() ? roles_.find(message.from.text) : std::nullopt;
  const bool calls = is_call(message);
  if (calls) role = Role::kAssistant;
  if (message.from.kind == ValueKind::kMissing) {
    return work.stop(Remark::kBadMessage, index, unknown_role(message.from));
  }
  if (!role) return work.stop(Remark::kUnknownRole, index, unknown_role(message.from));
  if (role == Role::kTool && !place_.for_tools) {
    return work.stop(
        Remark::kUnknownRole, index,
        "this chat template has no messages of role tool; a model's own may (--template model)");
  }
  const Value& value = message.value;
  if (value.kind == ValueKind::kMissing && !calls_tool(message)) {
    return work.stop(Remark::kBadMessage, index, "message has no \"value\" and no \"content\"");
  }
  if (value.is_true && !value.is_text() && !value.is_text_parts) {
    return work.stop(Remark::kNotText, index, concat("text is ", describe(value.kind)));
  }
  std::string_view text = calls ? std::string_view() : std::string_view(value.text);
  if (find_invalid_utf8(text) != std::string_view::npos) {
    work.note(Remark::kLoneSurrogate, Action::kSalvaged, index, "lone surrogate in text");
    text = work.own_text(replace_invalid_utf8(text));
  }
  return *role == Role::kSystem ? add_system(work, index, text)
                                : add_message(work, index, *role, text);
}

// A turn is a user message with what follows it up to the next; it stays when it ends with a reply,
// without what tools gave after it, and each of its texts is one.
void DialogueBuilder::remove_incomplete_turns(Work& work) const {
  auto& messages = work.dialogue.messages;
  size_t kept = 0;
  for (size_t begin = 0, end = 0; begin < messages.size(); begin = end) {
    end = begin + 1;
    while (end < messages.size() && messages[end].role != Role::kUser) ++end;
    size_t empty = begin;
    while (empty < end && !lacks_text(messages[empty])) ++empty;
    const size_t source = messages[std::min(empty, end - 1)].first;
    if (empty < end) {
      const bool is_user = messages[empty].role == Role::kUser;
      const bool calls = !is_user && calls_tool(work.conversation.messages[source]);
      const Remark reply = calls                    ? Remark::kToolCall
                           : end == messages.size() ? Remark::kEmptyLastReply
                                                    : Remark::kEmptyMiddleReply;
      work.note(
          is_user ? Remark::kEmptyUser : reply, Action::kSalvaged, source,
          is_user ? "empty user text"
          : calls ? "a reply that calls a tool and has no text, and the template writes no calls: "
                    "its turn is left out"
                  : "empty reply");
      continue;
    }
    if (messages[end - 1].role != Role::kAssistant) {
      work.note(Remark::kEndsWithUser, Action::kSalvaged, source,
                concat("ends with the ", name_of(messages[end - 1].role)));
    }
    size_t stop = end;
    while (stop > begin && messages[stop - 1].role != Role::kAssistant) --stop;
    std::copy(messages.begin() + begin, messages.begin() + stop, messages.begin() + kept);
    kept += stop - begin;
  }
  messages.resize(kept);
}

void DialogueBuilder::choose_learned(Work& work) const {
  auto& messages = work.dialogue.messages;
  const bool ends_with_reply = notes_of(work.conversation).ends_with_reply;
  if (ends_with_reply || train_turns_ == TrainTurns::kEach) cut_after_last_learned(messages);
  if (train_turns_ == TrainTurns::kEach || train_turns_ == TrainTurns::kLast) {
    for (size_t i = 0; i + 1 < messages.size(); ++i) messages[i].is_learned = false;
  }
  if (std::ranges::any_of(messages, &DialogueMessage::is_learned)) return;
  const bool calls = std::ranges::any_of(
      work.findings, [](const Finding& finding) { return finding.remark == Remark::kToolCall; });
  if (!messages.empty() && !calls) {
    work.exclude(Remark::kNotTrained, "\"train\" is false for every reply");
  }
  messages.clear();
  for (Finding& finding : work.findings) {
    if (finding.action == Action::kSalvaged) finding.action = Action::kExcluded;
  }
}

// A system text of the record's own that is not used is never lost in silence.
void DialogueBuilder::note_system(Work& work) const {
  const Value& own = work.conversation.system;
  const auto note = [&](std::string reason) {
    work.findings.push_back({Remark::kSystemIgnored, Action::kNoted, -1, std::move(reason)});
  };
  if (own.is_true && !own.is_text()) {
    note(concat("\"system\" is ", describe(own.kind), "; expected text"));
  } else if (work.has_two_systems) {
    note("the system message stands in place of the record's \"system\"");
  }
}

// The messages, with what may be learned of each. False when nothing is left to choose from.
bool DialogueBuilder::read(Work& work) const {
  const Conversation& conversation = work.conversation;
  Dialogue& dialogue = work.dialogue;
  std::vector<Finding>& findings = work.findings;
  if (fields_.tools) dialogue.tools = notes_of(conversation).tools;
  if (conversation.system.is_text() && !is_empty(conversation.system.text)) {
    dialogue.system = conversation.system.text;
    if (find_invalid_utf8(conversation.system.text) != std::string_view::npos) {
      findings.push_back({Remark::kLoneSurrogate, Action::kSalvaged, -1, "lone surrogate in text"});
      dialogue.system = work.own_text(replace_invalid_utf8(conversation.system.text));
    }
  }
  for (size_t i = 0; i < conversation.messages.size() && accept_message(work, i); ++i) {
  }
  if (dialogue.messages.empty() && work.skipped_first && findings.size() == 1) {
    findings.front() = {Remark::kAssistantOnly, Action::kExcluded, -1, "no user message"};
    return false;
  }
  remove_incomplete_turns(work);
  return true;
}

void DialogueBuilder::build(const Conversation& conversation, Dialogue& dialogue,
                            std::vector<Finding>& findings) const {
  dialogue = Dialogue();
  Work work{conversation, dialogue, findings};
  if (!accept_record(work)) return;
  if (conversation.shape == RecordShape::kText) return build_text(work);
  if (!read(work)) return;
  choose_learned(work);
  if (dialogue.messages.empty() && findings.empty()) {
    work.exclude(Remark::kAssistantOnly, "no user message");
  }
  if (!dialogue.messages.empty()) note_system(work);
}

std::vector<size_t> DialogueBuilder::reply_ends(const Conversation& conversation) const {
  Dialogue dialogue;
  std::vector<Finding> findings;
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
    return (void)work.exclude(Remark::kNotText, concat("\"text\" is ", describe(value.kind)));
  }
  if (value.text.empty()) return (void)work.exclude(Remark::kEmptyLastReply, "empty text");
  std::string_view text = value.text;
  if (find_invalid_utf8(text) != std::string_view::npos) {
    work.note(Remark::kLoneSurrogate, Action::kSalvaged, 0, "lone surrogate in text");
    text = work.own_text(replace_invalid_utf8(text));
  }
  if (!work.is_trained(0)) return (void)work.exclude(Remark::kNotTrained, "\"train\" is false");
  work.dialogue.messages.push_back({Role::kAssistant, text, true});
  work.dialogue.is_text = true;
}

}  // namespace fastsft
