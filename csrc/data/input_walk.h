#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chat/chunk_parser.h"
#include "chat/data_report.h"
#include "chat/record_reader.h"
#include "chat/share.h"
#include "storage/byte_source.h"

namespace fastsft {

// One file of a data set.
struct DataInput {
  std::string name;  // begins the message of every fault
  ByteSource* source = nullptr;
  Share share;
  size_t max_record = RecordReader::kMaxRecord;  // bytes of a record
  bool has_places = true;  // bytes and lines of the text mean something to the user
  std::string format = kAutoFormat;
};

// A chunk with what is needed to parse it.
struct InputChunk {
  const DataInput* input = nullptr;
  size_t index = 0;  // of the input
  FormatChoice format;
  RecordChunk chunk;
  std::vector<Conversation> records;
  UnusedFields unused;

  // Fills in `records` and `unused`.
  void parse();
};

// Goes through inputs one after the other, chunk by chunk. The first chunk of an input tells its
// data format.
class InputWalk {
 public:
  explicit InputWalk(std::vector<DataInput> inputs);

  // False when there is no more.
  bool next(InputChunk& chunk);
  // The name of a chunk's file; empty where there is only one.
  const std::string& file_of(const InputChunk& chunk) const;
  // Counts a chunk that was parsed; in the order of the data.
  void count(const InputChunk& chunk);
  const std::vector<DataReport::FormatUse>& formats() const { return formats_; }
  // The same for labels: calls of tools are used where a model's own template reads them.
  std::vector<DataReport::FormatUse> formats(const Labeller& labeller) const;

 private:
  std::vector<DataInput> inputs_;
  size_t index_ = 0;
  std::optional<RecordReader> reader_;
  std::optional<FormatChoice> format_;
  std::vector<DataReport::FormatUse> formats_;
};

// What a data set holds, without labels.
struct DataCounts {
  int64_t num_records = 0;
  int64_t num_messages = 0;
  int64_t num_text_bytes = 0;  // of the messages' texts
};

// Reads and parses inputs as label_data does.
DataCounts count_data(std::vector<DataInput> inputs, int num_threads);

}  // namespace fastsft
