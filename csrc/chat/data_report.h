#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "chat/data_fault.h"
#include "chat/remark.h"

namespace fastsft {

// What became of one record.
struct LabelledRecord {
  FastchatLabels labels;
  std::vector<Remark> remarks;
  std::vector<DataFault> faults;  // none or one; then there are no labels
  std::string name;               // the id, or the number when it has none
};

// The summary of a data set: nothing is lost without being counted here.
class DataReport {
 public:
  struct Entry {
    int64_t count = 0;
    std::vector<std::string> first;  // ids of the first five records
  };
  struct Warning {
    int64_t record = 0;
    Mismatch mismatch;
  };

  void add(const LabelledRecord& record);

  int64_t num_records() const { return num_records_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_learned() const { return num_learned_; }
  int64_t num_dropped() const { return static_cast<int64_t>(warnings_.size()); }
  int64_t num_without_labels() const { return num_without_labels_; }
  const Entry& entry(Remark remark) const { return entries_[static_cast<size_t>(remark)]; }
  // One for each dropped record, in order.
  const std::vector<Warning>& warnings() const { return warnings_; }

  // Several lines for people: totals, then each remark with its count, share and first records.
  std::string summary() const;

 private:
  int64_t num_records_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_learned_ = 0;
  int64_t num_without_labels_ = 0;
  std::array<Entry, kNumRemarks> entries_;
  std::vector<Warning> warnings_;
};

// FastChat's own line for a dropped sample.
std::string fastchat_warning(const Mismatch& mismatch);

}  // namespace fastsft
