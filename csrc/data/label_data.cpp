#include "data/label_data.h"

namespace fastsft {
namespace {

constexpr size_t kChunk = 4096;

void append(const std::vector<LabelledRecord>& records, LabelledData& data) {
  for (const LabelledRecord& record : records) {
    if (!record.faults.empty()) {
      data.faults.push_back(record.faults.front());
      continue;
    }
    if (record.has_row()) data.dataset.append(record.labels.example);
    data.report.add(record);
  }
}

}  // namespace

LabelledData label_conversations(const std::vector<Conversation>& conversations,
                                 const Labeller& labeller) {
  LabelledData data;
  append(labeller.label(conversations, 0), data);
  return data;
}

LabelledData label_records(ConversationReader& reader, const Labeller& labeller) {
  LabelledData data;
  std::vector<Conversation> chunk;
  int64_t first = 0;
  for (bool more = true; more;) {
    chunk.clear();
    for (Conversation next; chunk.size() < kChunk && (more = reader.next(next));) {
      chunk.push_back(std::move(next));
    }
    append(labeller.label(chunk, first), data);
    first += static_cast<int64_t>(chunk.size());
  }
  return data;
}

}  // namespace fastsft
