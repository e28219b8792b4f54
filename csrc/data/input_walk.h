#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/chunk_parser.h"
#include "chat/data_report.h"
#include "chat/record_reader.h"
#include "chat/share.h"
#include "core/ordered_pipeline.h"
#include "storage/byte_source.h"

namespace fastsft {

// A data file.
struct DataInput {
  std::string name;  // every error message about this file begins with it
  ByteSource* source = nullptr;
  Share share;
  size_t max_record = RecordReader::kMaxRecord;  // largest record size in bytes
  // true if byte offsets and line numbers in the text mean something to the user
  bool has_places = true;
  std::string format = kAutoFormat;
};

// A chunk with successive records, and everything needed to parse it.
struct InputChunk : OrderedPipeline::Piece {
  const DataInput* input = nullptr;
  size_t index = 0;  // input index
  FormatChoice format;
  RecordChunk chunk;
  std::vector<Conversation> records;
  UnusedFields unused;

  // Parses the chunk into `records` and `unused`.
  void parse();
};

// Reads inputs one after the other in chunks. An input's first chunk determines its data format.
class InputWalk {
 public:
  explicit InputWalk(std::vector<DataInput> inputs);

  // Reads the next chunk. Returns false after the last chunk.
  bool next(InputChunk& chunk);
  // Returns the file name for a chunk; "" if there is only one file.
  const std::string& file_of(const InputChunk& chunk) const;
  // Adds a parsed chunk to the format statistics. Call in data order.
  void count(const InputChunk& chunk);
  const std::vector<DataReport::FormatUse>& formats() const { return formats_; }
  // Returns `formats()` for a labelling: a tool call's fields count as used if the model's template
  // reads them.
  std::vector<DataReport::FormatUse> formats(const Labeller& labeller) const;

 private:
  std::vector<DataInput> inputs_;
  size_t index_ = 0;
  std::optional<RecordReader> reader_;
  std::optional<FormatChoice> format_;
  std::vector<DataReport::FormatUse> formats_;
};

// Progress of the work on a data set.
struct LabelProgress {
  int64_t num_bytes = 0;
  int64_t num_records = 0;
};
using PollProgress = std::function<void(const LabelProgress&)>;

// Processes all chunks in a data set: chunks are read in order, processed in parallel and consumed
// in order. `Chunk` is derived from InputChunk and holds results. Memory is bounded by the number
// of chunks in progress.
template <typename Chunk>
class InputWork : public OrderedPipeline {
 public:
  explicit InputWork(std::vector<DataInput> inputs, PollProgress poll = {})
      : walk_(std::move(inputs)), poll_(std::move(poll)) {}

  // Runs the work. Exceptions from `process`, `consume` and `poll` are passed on.
  void run(int num_threads) { run_in_order(*this, num_threads); }

 protected:
  // Parses a chunk and fills in its results. Called in parallel.
  virtual void process(Chunk& chunk) = 0;
  // Takes a chunk's results. Called for one chunk at a time, in data order.
  virtual void consume(Chunk& chunk) = 0;

  InputWalk walk_;

 private:
  std::unique_ptr<Piece> make() final {
    auto chunk = std::make_unique<Chunk>();
    return walk_.next(*chunk) ? std::move(chunk) : nullptr;
  }
  bool is_alone(const Piece& piece) const final {
    return static_cast<const Chunk&>(piece).chunk.is_large();
  }
  void work(Piece& piece) final {
    auto& chunk = static_cast<Chunk&>(piece);
    process(chunk);
    progress_.num_bytes += static_cast<int64_t>(chunk.chunk.text.size());
    progress_.num_records += chunk.chunk.num_records;
  }
  void take(Piece& piece) final {
    auto& chunk = static_cast<Chunk&>(piece);
    walk_.count(chunk);
    consume(chunk);
  }
  void poll() final {
    if (poll_) poll_({progress_.num_bytes, progress_.num_records});
  }

  PollProgress poll_;
  struct {
    std::atomic<int64_t> num_bytes = 0, num_records = 0;
  } progress_;
};

// Data set size, counted without tokenizing.
struct DataCounts {
  int64_t num_records = 0;
  int64_t num_messages = 0;
  int64_t num_text_bytes = 0;  // bytes in the messages' texts
};

// Counts the inputs' records and messages. The inputs are read and parsed as in label_data.
DataCounts count_data(std::vector<DataInput> inputs, int num_threads);

}  // namespace fastsft
