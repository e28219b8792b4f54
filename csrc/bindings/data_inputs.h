#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/label_data.h"

namespace fastsft::bindings {

// One input of a data set, _C.DataInput: its name, byte source, weight and format.
struct PythonInput {
  std::string name;
  std::shared_ptr<ByteSource> source;
  double weight = 1;
  size_t max_record = RecordReader::kMaxRecord;
  std::string format = kAutoFormat;
};

inline std::vector<DataInput> to_inputs(const std::vector<PythonInput>& inputs) {
  std::vector<DataInput> result;
  for (const auto& [name, source, weight, max_record, format] : inputs) {
    result.push_back({name, source.get(), Share(weight), max_record, true, format});
  }
  return result;
}

}  // namespace fastsft::bindings
