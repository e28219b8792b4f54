#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/data_report.h"
#include "chat/labeller.h"
#include "data/input_walk.h"
#include "data/label_sink.h"

namespace fastsft {

// A data set's report, and the records that stop the run, which have no row.
struct LabelSummary {
  DataReport report;
  std::vector<RecordError> faults;  // the first kMaxFaults
  int64_t num_faults = 0;
};
inline constexpr size_t kMaxFaults = 1000;

// A chunk with its labels.
struct LabelledChunk : InputChunk {
  std::vector<LabelledRecord> labelled;  // one for each of `records`
  std::string bad_records;               // lines of --report_bad

  void parse_and_label(const Labeller& labeller);
};

// A data set tokenised and labelled in memory.
struct LabelledData {
  TokenDataset dataset;
  LabelSummary summary;
  std::string bad_records;  // lines of --report_bad
};

// Labels conversations that are in memory.
LabelledData label_conversations(std::vector<Conversation> conversations, const Labeller& labeller);

// Labels the records of several inputs, one after the other (InputWork), and gives the rows to
// `sink` in order. `poll` is called on the calling thread now and then; an exception of it ends the
// work.
LabelSummary label_data(std::vector<DataInput> inputs, const Labeller& labeller, LabelSink& sink,
                        const PollProgress& poll);

}  // namespace fastsft
