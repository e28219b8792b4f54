#include "chat/data_report.h"

#include <algorithm>
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

std::string action_counts(const DataReport::Entry& entry) {
  std::string text;
  for (size_t action = 0; action < kNumActions; ++action) {
    const int64_t count = entry.by_action[action];
    if (count == 0) continue;
    text += concat(text.empty() ? "" : ", ", name_of(static_cast<Action>(action)), " ", count);
  }
  return text;
}

bool has_action(const LabelledRecord& record, Action action) {
  return std::any_of(record.findings.begin(), record.findings.end(),
                     [&](const Finding& finding) { return finding.action == action; });
}

}  // namespace

std::string fastchat_warning(const Mismatch& mismatch) {
  return concat("WARNING: tokenization mismatch: ", mismatch.counted, " vs. ", mismatch.real,
                ". #turn = ", mismatch.turns, ". (ignored)");
}

void DataReport::add(const LabelledRecord& record, const std::string& file) {
  if (record.is_cut_off) {
    ++num_truncated_;
    return add_remarks(record, file);
  }
  const Example& example = record.labels.example;
  if (record.labels.dropped) warnings_.push_back({num_records_, record.labels.mismatch});
  ++num_records_;
  num_whole_ += !record.is_later_reply;
  num_tokens_ += static_cast<int64_t>(example.ids.size());
  for (const TokenSpan& span : example.learned) num_learned_ += span.end - span.begin;
  num_without_labels_ += example.learned.empty();
  num_excluded_ += record.outcome == Action::kExcluded;
  num_salvaged_ += record.outcome < Action::kUnlabelled && has_action(record, Action::kSalvaged);
  num_truncated_ += has_action(record, Action::kTruncated);
  add_remarks(record, file);
}

void DataReport::add_remarks(const LabelledRecord& record, const std::string& file) {
  if (record.findings.empty()) return;
  const std::string name = file.empty() ? record.name : concat(file, ": ", record.name);
  for (size_t i = 0; i < record.findings.size(); ++i) {
    const Finding& finding = record.findings[i];
    const auto is_same = [&](const Finding& other) { return other.remark == finding.remark; };
    // Records are counted, not messages.
    if (std::any_of(record.findings.begin(), record.findings.begin() + i, is_same)) continue;
    Entry& entry = entries_[static_cast<size_t>(finding.remark)];
    ++entry.by_action[static_cast<size_t>(finding.action)];
    if (entry.count == 0) {
      const bool has_place = finding.message >= 0 && !finding.reason.empty();
      entry.reason = (has_place ? concat("message ", finding.message, ": ") : "") + finding.reason;
    }
    ++entry.count;
    const bool is_named = !entry.first.empty() && entry.first.back() == name;  // another row of it
    if (entry.first.size() < kNumNamed && !is_named) entry.first.push_back(name);
  }
}

void DataReport::append(const DataReport& next) {
  for (Warning warning : next.warnings_) {
    warning.record += num_records_;
    warnings_.push_back(warning);
  }
  formats_.insert(formats_.end(), next.formats_.begin(), next.formats_.end());
  num_records_ += next.num_records_;
  num_whole_ += next.num_whole_;
  num_tokens_ += next.num_tokens_;
  num_learned_ += next.num_learned_;
  num_excluded_ += next.num_excluded_;
  num_salvaged_ += next.num_salvaged_;
  num_truncated_ += next.num_truncated_;
  num_without_labels_ += next.num_without_labels_;
  for (size_t i = 0; i < kNumRemarks; ++i) {
    Entry& entry = entries_[i];
    const Entry& more = next.entries_[i];
    if (entry.count == 0) entry.reason = more.reason;
    entry.count += more.count;
    for (size_t action = 0; action < kNumActions; ++action) {
      entry.by_action[action] += more.by_action[action];
    }
    for (const std::string& name : more.first) {
      const bool is_named = !entry.first.empty() && entry.first.back() == name;
      if (entry.first.size() < kNumNamed && !is_named) entry.first.push_back(name);
    }
  }
}

std::string DataReport::summary() const {
  const std::string of =
      concat(" rows of ", num_whole_, num_whole_ == 1 ? " record, " : " records, ");
  std::string text = concat(
      num_records_,
      num_whole_ < num_records_ ? of
      : num_records_ == 1       ? " conversation, "
                                : " conversations, ",
      num_tokens_, " tokens, ", num_learned_, " learned (", percent(num_learned_, num_tokens_),
      "); ", num_without_labels_, " without a label, ", num_dropped(), " of them dropped and ",
      num_excluded_, " excluded; ", num_salvaged_, " salvaged, ", num_truncated_, " truncated");
  for (size_t i = 0; i < kNumRemarks; ++i) {
    const Entry& entry = entries_[i];
    if (entry.count == 0) continue;
    // Pieces after which a record was cut off have remarks, too, and are no rows.
    const std::string share =
        entry.count > num_records_ ? "" : concat(" (", percent(entry.count, num_records_), ")");
    text += concat("\n  ", name_of(static_cast<Remark>(i)), ": ", action_counts(entry), share,
                   ", first: ");
    for (size_t k = 0; k < entry.first.size(); ++k) text += (k == 0 ? "" : ", ") + entry.first[k];
    if (!entry.reason.empty()) text += concat(" (", entry.reason, ")");
  }
  return text;
}

}  // namespace fastsft
