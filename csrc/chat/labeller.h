#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chat/conversation.h"
#include "chat/dialogue.h"
#include "chat/dialogue_builder.h"
#include "chat/example.h"
#include "chat/fastchat_check.h"
#include "chat/issue.h"
#include "chat/label_options.h"
#include "chat/special_parts.h"
#include "chat/transcript.h"
#include "tokenizer/tokenizer.h"

namespace fastsft {

// The result of labelling a record. A record with faults stops the run (--on_bad_sample error).
struct LabelledRecord {
  Labels labels;
  Outcome outcome = Outcome::kNoted;  // the worst action among the findings
  std::vector<RecordIssue> findings;
  std::vector<RecordError> faults;  // at most one fault; the labels are then empty
  std::string name;                 // the record's id, or its number if there is no id
  // For --train_turns each. is_later_reply: the row is for a reply after the record's first.
  // is_cut_off: the reply lies beyond the row's end, so it counts as an issue but not as a record.
  bool is_later_reply = false, is_cut_off = false;

  // Sets the outcome from the findings. An excluded record loses its labels.
  void settle();
  bool has_row() const { return faults.empty() && outcome != Outcome::kExcluded && !is_cut_off; }
};

// Renders many dialogues at once with the model's own (Jinja) template.
class BatchRenderer {
 public:
  virtual ~BatchRenderer() = default;

  // Returns a transcript for each dialogue, empty dialogues included. Only one thread calls it at a
  // time.
  virtual std::vector<Transcript> render(std::span<const Dialogue* const> dialogues) const = 0;
};

// Turns records into labelled examples with several threads. The result does not depend on the
// thread count.
class Labeller {
 public:
  // `tokenizer` must outlive this object. `renderer`: required for the template "model" and not
  // allowed for others. Throws std::invalid_argument if the options contradict each other or the
  // tokenizer cannot be used with them.
  Labeller(const Tokenizer& tokenizer, LabelOptions options,
           std::shared_ptr<const BatchRenderer> renderer = nullptr);

  // Replaces each conversation that becomes several rows by its pieces (record_pieces.h).
  void split(std::vector<Conversation>& conversations) const;

  // Returns a record for each conversation. With the template "model", a conversation whose replies
  // need their own rows is replaced by its pieces, as in `split`.
  std::vector<LabelledRecord> label(std::vector<Conversation>& conversations) const;

  // Labels a conversation and returns also the transcript from which the labels were made.
  LabelledRecord label_one(const Conversation& conversation, Transcript& transcript,
                           LabelBuffers& buffers) const;

  // True if several threads may label at once. Otherwise only one thread may label, and should pass
  // many records per call for speed.
  bool is_concurrent() const { return native_.has_value(); }

  const LabelOptions& options() const { return options_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  LabelledRecord label_fastchat_record(const Conversation& conversation, Transcript& transcript,
                                       LabelBuffers& buffers) const;
  // `needs_rows`: receives the index for each conversation whose replies need their own rows.
  std::vector<LabelledRecord> label_rendered(const std::vector<Conversation>& conversations,
                                             std::vector<size_t>& needs_rows) const;
  void label_divided(const std::vector<size_t>& divided, std::vector<Conversation>& conversations,
                     std::vector<LabelledRecord>& records) const;
  LabelledRecord begin_spans(const Conversation& conversation, Dialogue& dialogue) const;
  void finish_spans(const Dialogue& dialogue, Transcript& transcript, LabelBuffers& buffers,
                    LabelledRecord& record) const;
  void note_merged(LabelledRecord& record) const;
  void note_specials(const Dialogue& dialogue, LabelledRecord& record) const;
  bool holds_special(const Dialogue& dialogue, const Transcript& transcript) const;

  const Tokenizer& tokenizer_;
  LabelOptions options_;
  std::shared_ptr<const BatchRenderer> renderer_;
  const ChatTemplate* template_ = nullptr;  // null for the template "model"
  std::optional<TemplateRenderer> native_;
  DialogueBuilder builder_;
  FastchatRoles fastchat_roles_;
  std::vector<std::string> special_texts_;  // texts that are reported if they occur inside data
  std::optional<MarkFinder> marks_;         // for records that are a plain text
  std::optional<SpecialParts> parts_;       // for the template "model"
};

}  // namespace fastsft
