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

// Result of labelling one record. A record with faults stops the run (--on_bad_sample error).
struct LabelledRecord {
  Labels labels;
  Outcome outcome = Outcome::kNoted;  // the worst of the findings
  std::vector<RecordIssue> findings;
  std::vector<RecordError> faults;  // none or one; then there are no labels
  std::string name;                 // the id, or the number when it has none
  // --train_turns each: not a record's first reply, and cut off where a row ends: no record of its
  // own, but a remark.
  bool is_later_reply = false, is_cut_off = false;

  // Sets the outcome from the findings; an excluded record loses its labels.
  void settle();
  bool has_row() const { return faults.empty() && outcome != Outcome::kExcluded && !is_cut_off; }
};

// Renders many dialogues at once, with the model's own (Jinja) template.
class BatchRenderer {
 public:
  virtual ~BatchRenderer() = default;

  // One transcript for each dialogue, empty ones included. Called by one thread at a time.
  virtual std::vector<Transcript> render(std::span<const Dialogue* const> dialogues) const = 0;
};

// Turns records into labelled examples with several threads. The result does not depend on their
// number.
class Labeller {
 public:
  // `tokenizer` must outlive this. `renderer` is for the template "model" only. Throws
  // std::invalid_argument for options that contradict each other or a tokenizer that cannot serve.
  Labeller(const Tokenizer& tokenizer, LabelOptions options,
           std::shared_ptr<const BatchRenderer> renderer = nullptr);

  // Replaces conversations that become several rows by their pieces (record_pieces.h).
  void split(std::vector<Conversation>& conversations) const;

  // One record for each conversation. With the template "model" those whose replies need rows of
  // their own are replaced by their pieces, as `split` makes them.
  std::vector<LabelledRecord> label(std::vector<Conversation>& conversations) const;

  // As `label` for one, with the transcript that the labels were made from.
  LabelledRecord label_one(const Conversation& conversation, Transcript& transcript,
                           LabelBuffers& buffers) const;

  // Several threads may label at once. Otherwise one thread must, many records at a time for speed.
  bool is_concurrent() const { return native_.has_value(); }

  const LabelOptions& options() const { return options_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  LabelledRecord label_fastchat_record(const Conversation& conversation, Transcript& transcript,
                                       LabelBuffers& buffers) const;
  // `needs_rows`: the numbers of the conversations whose replies do.
  std::vector<LabelledRecord> label_rendered(const std::vector<Conversation>& conversations,
                                             std::vector<size_t>& needs_rows) const;
  void label_divided(const std::vector<size_t>& divided, std::vector<Conversation>& conversations,
                     std::vector<LabelledRecord>& records) const;
  LabelledRecord begin_spans(const Conversation& conversation, Dialogue& dialogue) const;
  void finish_spans(const Dialogue& dialogue, const Transcript& transcript, LabelBuffers& buffers,
                    LabelledRecord& record) const;
  void note_merged(LabelledRecord& record) const;
  void note_specials(const Dialogue& dialogue, LabelledRecord& record) const;
  bool holds_special(const Dialogue& dialogue, const Transcript& transcript) const;

  const Tokenizer& tokenizer_;
  LabelOptions options_;
  std::shared_ptr<const BatchRenderer> renderer_;
  const ChatTemplate* template_ = nullptr;  // null for "model"
  std::optional<TemplateRenderer> native_;
  DialogueBuilder builder_;
  FastchatRoles fastchat_roles_;
  std::vector<std::string> special_texts_;  // worth a remark inside data
  std::optional<MarkFinder> marks_;         // in records that are one text
  std::optional<SpecialParts> parts_;       // of the template "model"
};

}  // namespace fastsft
