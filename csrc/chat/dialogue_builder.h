#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "chat/dialogue.h"
#include "chat/issue.h"
#include "chat/label_options.h"
#include "chat/role_names.h"
#include "chat/template_fields.h"

namespace fastsft {

struct DialogueWork;

// Builds dialogues from records for --mask_policy spans and keeps as much of each record as
// possible: the part before a structural error, without turns that lack a text
// (docs/spec/fastchat_labels.md, sections 4.2 and 6.4). Every change is reported as a RecordIssue.
// A dialogue without a learned reply is left empty, and its issues say why.
class DialogueBuilder {
 public:
  // The chat template's abilities.
  struct Place {
    bool for_tools = false;  // the template can write tool messages
    bool strips = false;     // the template strips texts, so mere white space is an empty text
  };

  DialogueBuilder(const LabelOptions& options, Place place);

  // Builds `dialogue` and reports issues in `findings`. `conversation` and this object must outlive
  // `dialogue`.
  void build(const Conversation& conversation, Dialogue& dialogue,
             std::vector<RecordIssue>& findings) const;

  // Returns an issue for a train mark that cannot be followed, if there is such a mark.
  std::optional<RecordIssue> find_bad_mark(const Conversation& conversation) const;

  // Returns, for each reply that may be learned, the index of its last message in the record.
  std::vector<size_t> reply_ends(const Conversation& conversation) const;

 private:
  using Work = DialogueWork;

  bool read(Work& work) const;
  bool accept_record(Work& work) const;
  bool accept_message(Work& work, size_t index) const;
  bool add_message(Work& work, size_t index, Role role, std::string_view text) const;
  bool add_system(Work& work, size_t index, std::string_view text) const;
  bool join_system(Work& work, size_t index, std::string_view text) const;
  bool join_call(Work& work, size_t index) const;
  void note_lost_call(Work& work, size_t index, std::string_view text) const;
  std::string_view call_thoughts(const Message& message) const;
  std::string more_of(Work& work, const MessageExtras& extras, size_t index, Role role) const;
  std::vector<std::string> result_ids(const Work& work, size_t index) const;
  bool follows(const Work& work, Role role) const;
  bool is_empty(std::string_view text) const;
  // If the template writes no tool calls, --role_map may give a role for calls another meaning.
  bool is_call(const Message& message) const {
    return message.is_call && (fields_.calls || !roles_.find(message.from.text));
  }
  bool calls_tool(const Message& message) const {
    return message.is_call ? is_call(message) : message.calls_tool;
  }
  bool lacks_text(const DialogueMessage& message) const;
  DialogueMessage make_message(Work& work, size_t index, Role role, std::string_view text) const;
  void remove_incomplete_turns(Work& work) const;
  bool is_complete(Work& work, size_t begin, size_t end) const;
  void choose_replies(std::vector<DialogueMessage>& messages) const;
  void choose_learned(Work& work) const;
  void note_system(Work& work) const;
  void note_calls(Work& work) const;
  void build_text(Work& work) const;

  RoleNames roles_;
  TrainTurns train_turns_;
  Learn learn_;
  bool learns_calls_;
  std::string default_system_;
  bool repairs_;
  Place place_;
  TemplateFields fields_;
};

}  // namespace fastsft
