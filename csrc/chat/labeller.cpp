#include "chat/labeller.h"

#include <algorithm>

#include "chat/record_pieces.h"
#include "chat/train_mark.h"
#include "chat/transcript_labels.h"
#include "core/error.h"

namespace fastsft {
namespace {

const ChatTemplate* find_named(const LabelOptions& options) {
  options.check();
  return options.chat_template == kModelTemplate ? nullptr
                                                 : &find_chat_template(options.chat_template);
}

LabelledRecord begin_record(const Conversation& conversation) {
  LabelledRecord record;
  record.name =
      conversation.id.empty() ? concat("record ", conversation.number) : printable(conversation.id);
  const RecordNotes& notes = notes_of(conversation);
  record.is_later_reply = notes.told > 0;
  if (!notes.split.empty()) {
    record.findings.push_back({Issue::kSplit, Outcome::kNoted, -1, notes.split});
  }
  if (!notes.lost.empty()) {
    const Outcome action = conversation.is_left_out ? Outcome::kExcluded : Outcome::kSalvaged;
    record.findings.push_back({Issue::kSplitLost, action, -1, notes.lost});
  }
  return record;
}

// Returns the error that stops the run because of `finding`.
RecordError fault_of(const Conversation& conversation, const RecordIssue& finding) {
  RecordError fault;
  fault.kind = python_error(finding.remark);
  fault.record = conversation.number;
  fault.id = conversation.id;
  fault.message = finding.message;
  fault.reason = finding.reason;
  fault.remark = finding.remark;
  fault.always_stops = finding.remark == Issue::kOtherFormat || finding.remark == Issue::kBadMark;
  return fault;
}

// Throws unless the tokenizer gives each token's byte range, which the spans policy needs.
void check_offsets(const Tokenizer& tokenizer) {
  constexpr std::string_view kProbe = "Hi there.";
  std::vector<Token> tokens;
  tokenizer.encode(kProbe, SpecialText::kFind, tokens);
  require(!tokens.empty() && tokens.front().begin == 0 && tokens.back().end == kProbe.size(),
          "--mask_policy spans needs a tokenizer that tells which bytes each token stands for");
}

// Returns the text in quotes and on one line.
std::string quoted_line(const std::string& text) {
  std::string shown = "\"";
  for (const char c : text) shown += c == '\n' ? "\\n" : std::string(1, c);
  return printable(shown + "\"");
}

Dialogue dialogue_of(const Turns& turns) {
  Dialogue dialogue;
  for (size_t i = 0; i < turns.texts.size(); ++i) {
    const Role role = i % 2 == 0 ? Role::kUser : Role::kAssistant;
    dialogue.messages.push_back({role, *turns.texts[i], role == Role::kAssistant});
  }
  return dialogue;
}

}  // namespace

void LabelledRecord::settle() {
  for (const RecordIssue& finding : findings) outcome = std::max(outcome, finding.action);
  if (outcome == Outcome::kExcluded) labels = Labels();
}

Labeller::Labeller(const Tokenizer& tokenizer, LabelOptions options,
                   std::shared_ptr<const BatchRenderer> renderer)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      renderer_(std::move(renderer)),
      template_(find_named(options_)),
      builder_(options_, {template_ == nullptr, template_ != nullptr && template_->strips}),
      fastchat_roles_{RoleNames(options_.role_aliases, options_.role_map),
                      RoleNames(true, options_.role_map)} {
  require((template_ == nullptr) == (renderer_ != nullptr),
          "the template \"model\" needs a renderer, and only it");
  if (template_ != nullptr) native_.emplace(*template_, tokenizer_);
  if (options_.mask_policy != MaskPolicy::kSpans) return;
  check_offsets(tokenizer_);
  auto& texts = special_texts_;
  const NamedIds ids = tokenizer_.named();
  for (const int32_t id : {ids.bos, ids.eos, ids.unk}) {
    if (id >= 0) texts.push_back(tokenizer_.token_text(id));
  }
  if (template_ != nullptr) texts.push_back(template_->stop_token);
  if (template_ == nullptr) parts_.emplace(tokenizer_);
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  marks_.emplace(tokenizer_, texts);
}

void Labeller::split(std::vector<Conversation>& conversations) const {
  const auto replace_each = [&](const auto& take) {
    std::vector<Conversation> pieces;
    for (Conversation& conversation : conversations) take(conversation, pieces);
    conversations = std::move(pieces);
  };
  if (options_.overlong == Overlong::kSplit) {
    replace_each([&](Conversation& conversation, std::vector<Conversation>& pieces) {
      const bool is_fastchats =
          options_.mask_policy == MaskPolicy::kFastchat && conversation.is_fastchats;
      const RoleNames& roles =
          is_fastchats ? fastchat_roles_.after_from : fastchat_roles_.after_role;
      split_overlong(tokenizer_, roles, options_.max_length, conversation, pieces);
    });
  }
  const bool of_thoughts = options_.train_turns == TrainTurns::kEachWithThoughts;
  if (of_thoughts || options_.train_turns == TrainTurns::kEach) {
    replace_each([&](Conversation& conversation, std::vector<Conversation>& pieces) {
      if (of_thoughts && !has_earlier_thoughts(conversation)) {
        return pieces.push_back(std::move(conversation));
      }
      split_replies(builder_, tokenizer_, options_.max_length, conversation, pieces);
    });
  }
}

LabelledRecord Labeller::label_fastchat_record(const Conversation& conversation,
                                               Transcript& transcript,
                                               LabelBuffers& buffers) const {
  LabelledRecord record = begin_record(conversation);
  if (conversation.is_left_out) return record;
  if (const auto bad = find_bad_mark(conversation, fastchat_roles_.after_role, MarkUse::kRefused)) {
    record.faults.push_back(fault_of(conversation, *bad));
    return record;
  }
  Turns turns;
  if (auto fault = check_conversation(conversation, fastchat_roles_, turns)) {
    fault->record = conversation.number;
    fault->id = conversation.id;
    if (fault->always_stops || options_.on_bad_sample == OnBadSample::kError) {
      record.faults.push_back(std::move(*fault));
    } else {
      record.findings.push_back({fault->remark, Outcome::kExcluded, fault->message, fault->reason});
    }
    return record;
  }
  native_->render(dialogue_of(turns), transcript);
  record.labels = label_fastchat(tokenizer_, *template_, transcript, options_.max_length,
                                 options_.pad_id, buffers);
  if (record.labels.dropped) {
    record.findings.push_back({find_drop_reason(*template_, turns), Outcome::kDropped, -1, ""});
  } else {
    for (RecordIssue& note : find_notes(tokenizer_, turns, record.labels)) {
      record.findings.push_back(std::move(note));
    }
  }
  if (conversation.system.is_true) {
    record.findings.push_back({Issue::kSystemIgnored, Outcome::kNoted, -1,
                               "the system text of --mask_policy fastchat is fixed"});
  }
  return record;
}

// Builds a record's dialogue. Leaves it empty if nothing can be labelled.
LabelledRecord Labeller::begin_spans(const Conversation& conversation, Dialogue& dialogue) const {
  LabelledRecord record = begin_record(conversation);
  if (conversation.is_left_out) return record;
  if (const auto bad = builder_.find_bad_mark(conversation)) {
    record.faults.push_back(fault_of(conversation, *bad));
    return record;
  }
  std::vector<RecordIssue> found;
  builder_.build(conversation, dialogue, found);
  const auto told = static_cast<int64_t>(notes_of(conversation).told);
  for (RecordIssue& finding : found) {
    const bool is_news = told == 0 || finding.message >= told || dialogue.messages.empty();
    if (is_news) record.findings.push_back(std::move(finding));
  }
  const bool stops = options_.on_bad_sample == OnBadSample::kError;
  for (const RecordIssue& finding : record.findings) {
    if (!is_bad_sample(finding.remark)) continue;
    if (!stops && finding.remark != Issue::kOtherFormat) continue;
    record.faults.push_back(fault_of(conversation, finding));
    dialogue.messages.clear();
    break;
  }
  return record;
}

bool Labeller::holds_special(const Dialogue& dialogue, const Transcript& transcript) const {
  std::vector<Token> tokens;
  const auto holds = [&](std::string_view text) {
    tokens.clear();
    tokenizer_.encode(text, SpecialText::kFind, tokens);
    return std::any_of(tokens.begin(), tokens.end(),
                       [&](const Token& token) { return tokenizer_.is_control(token.id); });
  };
  std::vector<std::string_view> texts;
  if (dialogue.system) texts.push_back(*dialogue.system);
  for (const DialogueMessage& message : dialogue.messages) texts.push_back(message.text);
  for (std::string_view more = transcript.more_data; !more.empty();) {
    const size_t end = std::min(more.find('\n'), more.size());
    texts.push_back(more.substr(0, end));
    more.remove_prefix(std::min(end + 1, more.size()));
  }
  return holds(transcript.more_data) || std::ranges::any_of(texts, holds) ||
         (parts_ && parts_->can_join(texts));
}

void Labeller::note_specials(const Dialogue& dialogue, LabelledRecord& record) const {
  if (dialogue.is_text) {
    const std::string_view mark = marks_->find(dialogue.messages.front().text);
    if (mark.empty()) return;
    record.findings.push_back(
        {Issue::kEmbeddedSpecial, Outcome::kNoted, -1,
         concat(mark,
                " in \"text\" is learned as letters, not as the token; write texts with marks ",
                "as messages, and the chat template writes the tokens")});
    return;
  }
  for (const DialogueMessage& message : dialogue.messages) {
    for (const std::string& text : special_texts_) {
      if (message.text.find(text) == std::string_view::npos) continue;
      record.findings.push_back(
          {Issue::kEmbeddedSpecial, Outcome::kNoted, -1, concat(text, " in text")});
      return;
    }
  }
}

void Labeller::note_merged(LabelledRecord& record) const {
  if (record.labels.merged.empty()) return;
  const bool is_split = options_.boundary_tokens == BoundaryTokens::kSplit;
  record.findings.push_back(
      {Issue::kBoundaryTokens, Outcome::kNoted, -1,
       concat("the end of the prompt and the beginning of the reply make one token, ",
              quoted_line(record.labels.merged),
              is_split ? ": trained as two, as inference has them"
                       : ", which inference never makes; --boundary_tokens split trains them as "
                         "two")});
}

void Labeller::finish_spans(const Dialogue& dialogue, Transcript& transcript, LabelBuffers& buffers,
                            LabelledRecord& record) const {
  if (dialogue.messages.empty() || !record.faults.empty()) return;
  const auto exclude = [&](Issue remark, std::string reason) {
    record.findings.push_back({remark, Outcome::kExcluded, -1, std::move(reason)});
  };
  if (!transcript.failure.empty()) return exclude(Issue::kTemplateRefuses, transcript.failure);
  if (!dialogue.is_text) transcript.leave_out_thoughts(options_.learn_thoughts);
  const bool is_mixed = !transcript.data_is_known && holds_special(dialogue, transcript);
  auto labels = is_mixed ? std::nullopt
                         : label_spans(tokenizer_, transcript, options_.max_length,
                                       options_.boundary_tokens, buffers);
  if (!labels) {
    return exclude(Issue::kEmbeddedSpecial,
                   "a special token's text in a message cannot be kept apart from the template's");
  }
  record.labels = std::move(*labels);
  note_specials(dialogue, record);
  note_merged(record);
  if (transcript.rewritten >= 0) {
    const DialogueMessage& reply = dialogue.messages.at(static_cast<size_t>(transcript.rewritten));
    record.findings.push_back({Issue::kTemplateRewrites, Outcome::kSalvaged,
                               static_cast<int64_t>(reply.first),
                               "the chat template does not write this reply as it is"});
  }
  if (record.labels.example.learned.empty() && record.labels.truncated && record.is_later_reply) {
    record.is_cut_off = true;
    record.labels = Labels();
    std::erase_if(record.findings, [](const RecordIssue& finding) {
      return finding.remark != Issue::kSplitLost;  // the piece before reports the others
    });
    record.findings.push_back({Issue::kReplyTruncated, Outcome::kTruncated, -1, "cut off whole"});
    return;
  }
  if (record.labels.example.learned.empty()) {
    return record.labels.truncated
               ? exclude(Issue::kNoReplyLeft,
                         concat("no reply within ", options_.max_length, " tokens"))
               : exclude(Issue::kNotTrained,
                         transcript.left_out.empty()
                             ? "the template marks nothing of it as learned"
                             : "nothing but thoughts is in its replies, and they are not learned");
  }
  if (record.labels.truncated) {
    record.findings.push_back({Issue::kReplyTruncated, Outcome::kTruncated, -1, "cut"});
  }
}

LabelledRecord Labeller::label_one(const Conversation& conversation, Transcript& transcript,
                                   LabelBuffers& buffers) const {
  transcript.clear();
  LabelledRecord record;
  if (options_.mask_policy == MaskPolicy::kFastchat) {
    record = label_fastchat_record(conversation, transcript, buffers);
  } else {
    Dialogue dialogue;
    record = begin_spans(conversation, dialogue);
    if (!dialogue.messages.empty()) {
      const Dialogue* one = &dialogue;
      if (conversation.shape == RecordShape::kText) {
        render_text(tokenizer_, dialogue.messages.front().text, transcript);
      } else if (native_) {
        native_->render(dialogue, transcript);
      } else {
        transcript = std::move(renderer_->render({&one, 1}).at(0));
      }
    }
    finish_spans(dialogue, transcript, buffers, record);
  }
  record.settle();
  return record;
}

}  // namespace fastsft
