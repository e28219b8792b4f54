#include "chat/labeller.h"

#include "core/error.h"
#include "core/run_in_parts.h"

namespace fastsft {

Labeller::Labeller(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                   int64_t max_length, int32_t pad_id, int num_threads)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      max_length_(max_length),
      pad_id_(pad_id),
      num_threads_(num_threads) {
  require(chat_template.has_fastchat_labels,
          "FastChat's label arithmetic is not defined for this template; expected vicuna_v1.1");
  require(max_length > 0 && max_length < INT32_MAX / 2, "model_max_length must be positive, got ",
          max_length);
  require(pad_id >= 0, "the tokenizer has no unk token to pad with, as FastChat's labels need");
}

LabelledRecord Labeller::label_one(const Conversation& conversation, int64_t number,
                                   Transcript& transcript) const {
  LabelledRecord record;
  record.name = conversation.id.empty() ? concat("record ", number) : printable(conversation.id);
  Turns turns;
  if (auto fault = check_conversation(conversation, turns)) {
    fault->record = number;
    fault->id = conversation.id;
    record.faults.push_back(std::move(*fault));
    return record;
  }
  render_template(chat_template_, turns, transcript);
  record.labels = label_transcript(tokenizer_, chat_template_, transcript, max_length_, pad_id_);
  if (record.labels.dropped) {
    record.remarks = {find_drop_reason(chat_template_, turns)};
  } else {
    record.remarks = find_notes(tokenizer_, turns, record.labels);
  }
  return record;
}

std::vector<LabelledRecord> Labeller::label(const std::vector<Conversation>& conversations,
                                            int64_t first_record) const {
  std::vector<LabelledRecord> records(conversations.size());
  run_in_parts(conversations.size(), num_threads_, [&](size_t begin, size_t end) {
    Transcript transcript;
    for (size_t i = begin; i < end; ++i) {
      records[i] = label_one(conversations[i], first_record + static_cast<int64_t>(i), transcript);
    }
  });
  return records;
}

}  // namespace fastsft
