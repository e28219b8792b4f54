#include "chat/data_report.h"

#include <cstdio>

#include "core/error.h"

namespace fastsft {
namespace {

constexpr size_t kNumNamed = 5;

std::string percent(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", whole == 0 ? 0.0 : 100.0 * part / whole);
  return text;
}

}  // namespace

std::string fastchat_warning(const Mismatch& mismatch) {
  return concat("WARNING: tokenization mismatch: ", mismatch.counted, " vs. ", mismatch.real,
                ". #turn = ", mismatch.turns, ". (ignored)");
}

void DataReport::add(const LabelledRecord& record) {
  const Example& example = record.labels.example;
  if (record.labels.dropped) warnings_.push_back({num_records_, record.labels.mismatch});
  ++num_records_;
  num_tokens_ += static_cast<int64_t>(example.ids.size());
  for (const TokenSpan& span : example.learned) num_learned_ += span.end - span.begin;
  num_without_labels_ += example.learned.empty();
  for (const Remark remark : record.remarks) {
    Entry& entry = entries_[static_cast<size_t>(remark)];
    if (++entry.count <= static_cast<int64_t>(kNumNamed)) entry.first.push_back(record.name);
  }
}

std::string DataReport::summary() const {
  std::string text =
      concat(num_records_, " conversations, ", num_tokens_, " tokens, ", num_learned_, " learned (",
             percent(num_learned_, num_tokens_), "); ", num_without_labels_, " without a label, ",
             num_dropped(), " of them dropped");
  for (size_t i = 0; i < kNumRemarks; ++i) {
    const Entry& entry = entries_[i];
    if (entry.count == 0) continue;
    text += concat("\n  ",
                   i < kNumDropReasons ? "dropped: " : "kept: ", name_of(static_cast<Remark>(i)),
                   ": ", entry.count, " (", percent(entry.count, num_records_), "), first: ");
    for (size_t k = 0; k < entry.first.size(); ++k) text += (k == 0 ? "" : ", ") + entry.first[k];
  }
  return text;
}

}  // namespace fastsft
