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

// A summary of a data set, in which every record and every loss is counted.
//   records = kept + unlabelled + dropped + excluded
// Salvaged and truncated records are counted among these. A record whose replies have rows of their
// own counts once per row; num_whole() counts it once.
class DataReport {
 public:
  // The records with a certain issue.
  struct Entry {
    int64_t count = 0;  // number of records
    std::array<int64_t, kNumOutcomes> by_action{};
    // Names of the first five records, with the file's name if there are several files.
    std::vector<std::string> first;
    std::string reason;  // explanation for the first record; may be empty
  };
  // The data format with which a file was read.
  struct FormatUse {
    std::string name;                 // "alpaca"
    std::string title;                // "Alpaca"
    std::string column;               // name of the message list; empty for the default name
    int64_t count = 0;                // record count
    std::vector<std::string> unused;  // unused fields
    bool operator==(const FormatUse&) const = default;
  };
  // The numbers that FastChat prints for a record that it drops.
  struct Warning {
    int64_t record = 0;
    Mismatch mismatch;
  };

  // Counts a record. A later reply that was cut off (LabelledRecord::is_cut_off) is not counted as
  // a record, but as truncated, and its issues are counted. `file`: the file's name, written in
  // front of the record's name; empty if there is only a single file.
  void add(const LabelledRecord& record, const std::string& file = "");
  // Adds the counts for the data set's next part.
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
  // Warnings about the records that FastChat drops, in order.
  const std::vector<Warning>& warnings() const { return warnings_; }
  // All files' data formats, in order.
  const std::vector<FormatUse>& formats() const { return formats_; }
  void set_formats(std::vector<FormatUse> formats) { formats_ = std::move(formats); }

  // Returns several lines for people: the totals, then each issue with its count, its percentage
  // and its first records.
  std::string summary() const;
  // Converts the whole report to JSON and back, for data_report.json and the caches. from_json
  // throws std::invalid_argument if the text is not such a report.
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

// Returns the line that FastChat prints when it drops a sample.
std::string fastchat_warning(const Mismatch& mismatch);

// Returns a line for --report_bad.
std::string bad_record_line(const RecordChunk& chunk, const Conversation& record,
                            const std::string& file, const RecordIssue& finding,
                            const char* action);

// Fills in the positions of a record's errors and appends lines for --report_bad to `lines`. Each
// error, and each issue that removed something, is a line of JSON with file, record, line, byte,
// id, field, remark, reason, action and excerpt.
void place_findings(const RecordChunk& chunk, const Conversation& record, const std::string& file,
                    LabelledRecord& labelled, std::string& lines);

}  // namespace fastsft
