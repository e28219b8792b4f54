#include "data/convert_data.h"

#include <atomic>

#include "core/ordered_work.h"

namespace fastsft {
namespace {

class ConvertWork : public OrderedWork {
 public:
  ConvertWork(std::vector<DataInput> inputs, const ConvertOptions& options, const ConvertSink& sink)
      : options_(options), sink_(sink), writer_(options.format), walk_(std::move(inputs)) {}

  std::unique_ptr<Piece> make() override {
    auto piece = std::make_unique<ConvertPiece>();
    return walk_.next(*piece) ? std::move(piece) : nullptr;
  }

  bool is_alone(const Piece& piece) const override {
    return static_cast<const ConvertPiece&>(piece).chunk.is_large();
  }

  void work(Piece& base) override {
    auto& piece = static_cast<ConvertPiece&>(base);
    piece.parse();
    for (const Conversation& record : piece.records) convert(record, piece);
    num_bytes_ += static_cast<int64_t>(piece.chunk.text.size());
    num_records_ += piece.chunk.num_records;
  }

  void take(Piece& base) override {
    auto& piece = static_cast<ConvertPiece&>(base);
    walk_.count(piece);
    summary_.num_records += static_cast<int64_t>(piece.num_written + piece.faults.size());
    summary_.num_faults += static_cast<int64_t>(piece.faults.size());
    for (DataFault& fault : piece.faults) {
      if (summary_.faults.size() < kMaxFaults) summary_.faults.push_back(std::move(fault));
    }
    if (!piece.bad_lines.empty()) sink_.write_bad(piece.bad_lines);
    if (piece.num_written == 0) return;
    if (options_.as_array) sink_.write(summary_.num_written == 0 ? "[\n" : ",\n");
    summary_.num_written += static_cast<int64_t>(piece.num_written);
    sink_.write(piece.text);
  }

  void poll() override {
    if (sink_.poll) sink_.poll({num_bytes_, num_records_});
  }

  ConvertSummary finish() {
    if (options_.as_array) sink_.write(summary_.num_written == 0 ? "[]\n" : "\n]\n");
    summary_.formats = walk_.formats();
    for (auto& use : summary_.formats) std::erase(use.unused, "tools");  // they are written
    return std::move(summary_);
  }

 private:
  struct ConvertPiece : Piece, InputChunk {
    std::string text;
    std::string bad_lines;
    std::vector<DataFault> faults;
    size_t num_written = 0;
  };

  void convert(const Conversation& record, ConvertPiece& piece) const {
    std::string line;
    if (auto found = writer_.write(record, line)) {
      piece.bad_lines +=
          bad_record_line(piece.chunk, record, piece.input->name, *found, "left out");
      add_fault(record, *found, piece);
      return;
    }
    const int64_t copies = piece.input->share.copies(record.number);
    for (int64_t i = 0; i < copies; ++i, ++piece.num_written) {
      if (options_.as_array && piece.num_written != 0) piece.text += ",\n";
      piece.text += line;
      if (!options_.as_array) piece.text += '\n';
    }
  }

  static void add_fault(const Conversation& record, const Finding& found, ConvertPiece& piece) {
    DataFault fault;
    fault.kind = FaultKind::kValueError;
    fault.record = record.number;
    fault.id = record.id;
    fault.message = found.message;
    fault.reason = found.reason;
    fault.remark = found.remark;
    Place place = find_place(piece.chunk, record, found.message);
    fault.file = piece.input->name;
    fault.line = place.line;
    fault.byte = place.byte;
    fault.excerpt = std::move(place.excerpt);
    piece.faults.push_back(std::move(fault));
  }

  ConvertOptions options_;
  const ConvertSink& sink_;
  RecordWriter writer_;
  InputWalk walk_;
  ConvertSummary summary_;
  std::atomic<int64_t> num_bytes_ = 0;
  std::atomic<int64_t> num_records_ = 0;
};

}  // namespace

ConvertSummary convert_data(std::vector<DataInput> inputs, const ConvertOptions& options,
                            const ConvertSink& sink) {
  ConvertWork work(std::move(inputs), options, sink);
  run_in_order(work, options.num_threads);
  return work.finish();
}

}  // namespace fastsft
