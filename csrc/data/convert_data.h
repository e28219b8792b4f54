#pragma once

#include <functional>
#include <string>
#include <vector>

#include "chat/record_writer.h"
#include "data/label_data.h"

namespace fastsft {

// Counts of a conversion: records = written + faults.
struct ConvertSummary {
  std::vector<DataReport::FormatUse> formats;  // of the inputs
  int64_t num_records = 0;
  int64_t num_written = 0;
  std::vector<RecordError> faults;  // records that could not be written: the first kMaxFaults
  int64_t num_faults = 0;
};

struct ConvertOptions {
  WrittenFormat format = WrittenFormat::kSharegpt;
  bool as_array = false;  // one JSON array, else one record per line
  int num_threads = 0;
};

// Where converted text and lines of --report_bad go, in order.
struct ConvertSink {
  std::function<void(const std::string& text)> write;
  std::function<void(const std::string& lines)> write_bad;
  PollProgress poll;  // now and then, on the calling thread
};

// Reads inputs as label_data does and writes every record, or names it as a fault. Memory is
// bounded as there.
ConvertSummary convert_data(std::vector<DataInput> inputs, const ConvertOptions& options,
                            const ConvertSink& sink);

}  // namespace fastsft
