#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "chat/issue.h"
#include "chat/labeller.h"
#include "chat/record_reader.h"

namespace fastsft {

// The summary of a data set: nothing is lost without being counted here.
//   records = kept + unlabelled + dropped + excluded
// salvaged and truncated records are counted among them. A record whose replies have rows of their
// own counts as often as it has such rows; num_whole() counts it once.
class DataReport {
 public:
  struct Entry {
    int64_t count = 0;  // records
    std::array<int64_t, kNumOutcomes> by_action{};
    std::vector<std::string> first;  // the first five records, of several files with the file
    std::string reason;              // of the first record, in words; may be empty
  };
  // What one of the files was read as.
  struct FormatUse {
    std::string name;                 // "alpaca"
    std::string title;                // "Alpaca"
    std::string column;               // list of messages, where it has a name of its own
    int64_t count = 0;                // records of the file
    std::vector<std::string> unused;  // fields
    bool operator==(const FormatUse&) const = default;
  };
  struct Warning {
    int64_t record = 0;
    Mismatch mismatch;
  };

  // One that is cut off is no record: it counts as truncated and by its remarks. `file`: its name
  // in front of the record's; empty where there is only one.
  void add(const LabelledRecord& record, const std::string& file = "");
  // Counts another part of the data set after this one.
  void append(const DataReport& next);

  int64_t num_records() const { return num_records_; }
  int64_t num_whole() const { return num_whole_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_learned() const { return num_learned_; }
  int64_t num_kept() const { return num_records_ - num_without_labels_; }
  int64_t num_dropped() const { return static_cast<int64_t>(warnings_.size()); }
  int64_t num_excluded() const { return num_excluded_; }
  int64_t num_salvaged() const { return num_salvaged_; }
  int64_t num_truncated() const { return num_truncated_; }
  int64_t num_without_labels() const { return num_without_labels_; }
  const Entry& entry(Issue remark) const { return entries_[static_cast<size_t>(remark)]; }
  // One for each record that FastChat drops, in order.
  const std::vector<Warning>& warnings() const { return warnings_; }
  // One for each file, in order.
  const std::vector<FormatUse>& formats() const { return formats_; }
  void set_formats(std::vector<FormatUse> formats) { formats_ = std::move(formats); }

  // Several lines for people: totals, then each remark with its count, share and first records.
  std::string summary() const;
  // The same, complete, for data_report.json and for caches; from_json throws
  // std::invalid_argument for another text.
  std::string to_json() const;
  static DataReport from_json(const std::string& text);

 private:
  void add_remarks(const LabelledRecord& record, const std::string& file);

  int64_t num_records_ = 0;
  int64_t num_whole_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_learned_ = 0;
  int64_t num_excluded_ = 0;
  int64_t num_salvaged_ = 0;
  int64_t num_truncated_ = 0;
  int64_t num_without_labels_ = 0;
  std::array<Entry, kNumIssues> entries_;
  std::vector<Warning> warnings_;
  std::vector<FormatUse> formats_;
};

// FastChat's own line for a dropped sample.
std::string fastchat_warning(const Mismatch& mismatch);

// A line of --report_bad.
std::string bad_record_line(const RecordChunk& chunk, const Conversation& record,
                            const std::string& file, const RecordIssue& finding,
                            const char* action);

// Fills in the places of the faults of a record, and appends to `lines` what --report_bad lists of
// it: one line of JSON for each fault and each finding that took something away, with file, record,
// line, byte, id, field, remark, reason, action and excerpt.
void place_findings(const RecordChunk& chunk, const Conversation& record, const std::string& file,
                    LabelledRecord& labelled, std::string& lines);

}  // namespace fastsft
