#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/data_report.h"
#include "chat/labeller.h"
#include "data/input_walk.h"
#include "data/label_sink.h"

namespace fastsft {

// The report on a data set, and the faulty records that stop the run. Like excluded records, faulty
// records have no row.
struct LabelSummary {
  DataReport report;
  std::vector<RecordError> faults;  // the first kMaxFaults faulty records
  int64_t num_faults = 0;
};
inline constexpr size_t kMaxFaults = 1000;

// A chunk and its records' labels.
struct LabelledChunk : InputChunk {
  std::vector<LabelledRecord> labelled;  // one entry per record
  std::string bad_records;               // --report_bad lines

  void parse_and_label(const Labeller& labeller);
  // Labels the parsed records. A record that becomes several rows is replaced by its pieces.
  void label(const Labeller& labeller);
};

// A data set that was tokenized and labelled in memory.
struct LabelledData {
  TokenDataset dataset;
  LabelSummary summary;
  std::string bad_records;  // --report_bad lines
};

// Labels conversations that are in memory.
LabelledData label_conversations(std::vector<Conversation> conversations, const Labeller& labeller);

// Labels the records from several inputs, one after the other (InputWork), and passes the rows to
// `sink` in order. `poll` is called at intervals on the calling thread; an exception it throws
// stops the work.
LabelSummary label_data(std::vector<DataInput> inputs, const Labeller& labeller, LabelSink& sink,
                        const PollProgress& poll);

}  // namespace fastsft
