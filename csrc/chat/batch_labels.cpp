#include "chat/labeller.h"
#include "chat/record_pieces.h"
#include "core/start_threads.h"

namespace fastsft {

std::vector<LabelledRecord> Labeller::label_rendered(const std::vector<Conversation>& conversations,
                                                     std::vector<size_t>& needs_rows) const {
  std::vector<LabelledRecord> records(conversations.size());
  const Dialogue none;
  std::vector<Dialogue> dialogues(conversations.size());
  std::vector<const Dialogue*> views;
  for (size_t i = 0; i < conversations.size(); ++i) {
    records[i] = begin_spans(conversations[i], dialogues[i]);
    views.push_back(conversations[i].shape == RecordShape::kText ? &none : &dialogues[i]);
  }
  std::vector<Transcript> transcripts = renderer_->render(views);
  for (size_t i = 0; i < transcripts.size(); ++i) {
    if (transcripts[i].needs_rows) needs_rows.push_back(i);
  }
  parallel_for(conversations.size(), options_.num_threads, [&](size_t begin, size_t end) {
    LabelBuffers buffers;
    for (size_t i = begin; i < end; ++i) {
      if (views[i] == &none && !dialogues[i].messages.empty()) {
        render_text(tokenizer_, dialogues[i].messages.front().text, transcripts[i]);
      }
      finish_spans(dialogues[i], transcripts[i], buffers, records[i]);
      records[i].settle();
    }
  });
  return records;
}

// Replaces each conversation in `divided` (indices) by its pieces, and its record by the pieces'
// records.
void Labeller::label_divided(const std::vector<size_t>& divided,
                             std::vector<Conversation>& conversations,
                             std::vector<LabelledRecord>& records) const {
  std::vector<Conversation> pieces, all_conversations;
  std::vector<size_t> ends;
  for (const size_t at : divided) {
    split_replies(builder_, tokenizer_, options_.max_length, conversations[at], pieces);
    ends.push_back(pieces.size());
  }
  std::vector<size_t> none;
  std::vector<LabelledRecord> piece_records = label_rendered(pieces, none), all_records;
  size_t next = 0, piece = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    if (next == divided.size() || divided[next] != i) {
      all_conversations.push_back(std::move(conversations[i]));
      all_records.push_back(std::move(records[i]));
      continue;
    }
    for (; piece < ends[next]; ++piece) {
      all_conversations.push_back(std::move(pieces[piece]));
      all_records.push_back(std::move(piece_records[piece]));
    }
    ++next;
  }
  conversations = std::move(all_conversations);
  records = std::move(all_records);
}

std::vector<LabelledRecord> Labeller::label(std::vector<Conversation>& conversations) const {
  if (!native_) {
    std::vector<size_t> needs_rows;
    std::vector<LabelledRecord> records = label_rendered(conversations, needs_rows);
    if (!needs_rows.empty()) label_divided(needs_rows, conversations, records);
    return records;
  }
  std::vector<LabelledRecord> records(conversations.size());
  parallel_for(conversations.size(), options_.num_threads, [&](size_t begin, size_t end) {
    Transcript transcript;
    LabelBuffers buffers;
    for (size_t i = begin; i < end; ++i) {
      records[i] = label_one(conversations[i], transcript, buffers);
    }
  });
  return records;
}

}  // namespace fastsft
