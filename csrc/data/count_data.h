#pragma once

#include <cstdint>
#include <vector>

#include "data/label_data.h"

namespace fastsft {

// What a data set holds, without labels.
struct DataCounts {
  int64_t num_records = 0;
  int64_t num_messages = 0;
  int64_t num_text_bytes = 0;  // of the messages' texts
};

// Reads and parses inputs as label_data does.
DataCounts count_data(std::vector<DataInput> inputs, int num_threads);

}  // namespace fastsft
