#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "chat/data_report.h"
#include "chat/labeller.h"
#include "data/input_walk.h"
#include "data/label_sink.h"

namespace fastsft {

// How far labelling has come.
struct LabelProgress {
  int64_t num_bytes = 0;
  int64_t num_records = 0;
};

// A data set's report, and the records that stop the run; they have no row, as excluded ones.
struct LabelSummary {
  DataReport report;
  std::vector<DataFault> faults;  // the first kMaxFaults
  int64_t num_faults = 0;
};
inline constexpr size_t kMaxFaults = 1000;

// A data set tokenised and labelled in memory.
struct LabelledData {
  TokenDataset dataset;
  LabelSummary summary;
  std::string bad_records;  // lines of --report_bad
};

// Labels conversations that are in memory.
LabelledData label_conversations(std::vector<Conversation> conversations, const Labeller& labeller);

// Labels the records of several inputs, one after the other: read in order, parsed and labelled in
// parallel some hundred kilobytes at a time, handed to `sink` in order. Memory is bounded. `poll`
// is called on the calling thread now and then; what it throws ends the work.
LabelSummary label_data(std::vector<DataInput> inputs, const Labeller& labeller, LabelSink& sink,
                        const std::function<void(const LabelProgress&)>& poll);

}  // namespace fastsft
