#include "data/label_data.h"

#include <atomic>

#include "core/ordered_work.h"

namespace fastsft {
namespace {

// `file`: where there are several.
void add(const LabelledRecord& record, const std::string& file, bool is_first_copy, LabelSink& sink,
         LabelSummary& summary) {
  if (record.faults.empty()) {
    if (record.has_row()) sink.add(record.labels.example);
    summary.report.add(record, file);
    return;
  }
  if (!is_first_copy) return;
  ++summary.num_faults;
  if (summary.faults.size() < kMaxFaults) summary.faults.push_back(record.faults.front());
}

class LabelWork : public OrderedWork {
 public:
  using Poll = std::function<void(const LabelProgress&)>;

  LabelWork(std::vector<DataInput> inputs, const Labeller& labeller, LabelSink& sink,
            const Poll& poll)
      : walk_(std::move(inputs)), labeller_(labeller), sink_(sink), poll_(poll) {}

  std::unique_ptr<Piece> make() override {
    auto piece = std::make_unique<LabelPiece>();
    return walk_.next(*piece) ? std::move(piece) : nullptr;
  }

  bool is_alone(const Piece& piece) const override {
    return static_cast<const LabelPiece&>(piece).chunk.is_large();
  }

  void work(Piece& base) override {
    auto& piece = static_cast<LabelPiece&>(base);
    piece.parse();
    labeller_.split(piece.records);
    label(piece);
    if (piece.input->has_places) {
      for (size_t i = 0; i < piece.records.size(); ++i) {
        place_findings(piece.chunk, piece.records[i], piece.input->name, piece.labelled[i],
                       piece.bad_records);
      }
    }
    num_bytes_ += static_cast<int64_t>(piece.chunk.text.size());
    num_records_ += piece.chunk.num_records;
  }

  void take(Piece& base) override {
    auto& piece = static_cast<LabelPiece&>(base);
    walk_.count(piece);
    for (size_t i = 0; i < piece.records.size(); ++i) {
      const int64_t copies = piece.input->share.copies(piece.records[i].number);
      for (int64_t k = 0; k < copies; ++k) {
        add(piece.labelled[i], walk_.file_of(piece), k == 0, sink_, summary_);
      }
    }
    if (!piece.bad_records.empty()) sink_.add_bad_records(piece.bad_records);
  }

  void poll() override {
    if (poll_) poll_({num_bytes_, num_records_});
  }

  LabelSummary finish() {
    summary_.report.set_formats(walk_.formats(labeller_));
    return std::move(summary_);
  }

 private:
  struct LabelPiece : Piece, InputChunk {
    std::vector<LabelledRecord> labelled;
    std::string bad_records;
  };

  void label(LabelPiece& piece) const {
    if (!labeller_.is_concurrent()) {
      piece.labelled = labeller_.label(piece.records);
      return;
    }
    Transcript transcript;
    LabelBuffers buffers;
    for (const Conversation& record : piece.records) {
      piece.labelled.push_back(labeller_.label_one(record, transcript, buffers));
    }
  }

  LabelSummary summary_;
  InputWalk walk_;
  const Labeller& labeller_;
  LabelSink& sink_;
  const Poll& poll_;
  std::atomic<int64_t> num_bytes_ = 0;
  std::atomic<int64_t> num_records_ = 0;
};

}  // namespace

LabelledData label_conversations(std::vector<Conversation> conversations,
                                 const Labeller& labeller) {
  MemorySink memory;
  LabelSummary summary;
  for (const LabelledRecord& record : labeller.label(conversations)) {
    add(record, "", true, memory, summary);
  }
  return {std::move(memory.dataset), std::move(summary), ""};
}

LabelSummary label_data(std::vector<DataInput> inputs, const Labeller& labeller, LabelSink& sink,
                        const std::function<void(const LabelProgress&)>& poll) {
  LabelWork work(std::move(inputs), labeller, sink, poll);
  run_in_order(work, labeller.is_concurrent() ? labeller.options().num_threads : 1);
  return work.finish();
}

}  // namespace fastsft
