#pragma once

#include <functional>
#include <string>
#include <vector>

#include "chat/record_writer.h"
#include "data/label_data.h"

namespace fastsft {

// Counts from a conversion; num_records = num_written + num_faults.
struct ConvertSummary {
  std::vector<DataReport::FormatUse> formats;  // data formats found in the inputs
  int64_t num_records = 0;
  int64_t num_written = 0;
  std::vector<RecordError> faults;  // the first kMaxFaults records that could not be written
  int64_t num_faults = 0;
};

struct ConvertOptions {
  WrittenFormat format = WrittenFormat::kSharegpt;
  bool as_array = false;  // one JSON array; otherwise one record per line
  int num_threads = 0;
};

// Receives the converted text and the --report_bad lines, in order.
struct ConvertSink {
  std::function<void(const std::string& text)> write;
  std::function<void(const std::string& lines)> write_bad;
  PollProgress poll;  // called at intervals on the calling thread
};

// Reads inputs as label_data does, and writes every record or reports it as a fault. Memory is
// bounded as in InputWork.
ConvertSummary convert_data(std::vector<DataInput> inputs, const ConvertOptions& options,
                            const ConvertSink& sink);

}  // namespace fastsft
