#include "data/survey_data.h"

#include <atomic>

#include "core/ordered_work.h"
#include "data/record_choice.h"

namespace fastsft {
namespace {

class SurveyWork : public OrderedWork {
 public:
  using Poll = std::function<void(const LabelProgress&)>;

  SurveyWork(std::vector<DataInput> inputs, const Labeller& labeller, const SurveyChoice& choice,
             const Poll& poll)
      : choice_(choice), walk_(std::move(inputs)), labeller_(labeller), poll_(poll) {}

  std::unique_ptr<Piece> make() override {
    auto piece = std::make_unique<SurveyPiece>();
    return walk_.next(*piece) ? std::move(piece) : nullptr;
  }

  bool is_alone(const Piece& piece) const override {
    return static_cast<const SurveyPiece&>(piece).chunk.is_large();
  }

  void work(Piece& base) override {
    auto& piece = static_cast<SurveyPiece&>(base);
    piece.parse();
    labeller_.split(piece.records);
    label(piece);
    std::string lines;
    for (size_t i = 0; i < piece.records.size(); ++i) {
      if (piece.labelled[i].faults.empty()) continue;
      lines.clear();
      place_findings(piece.chunk, piece.records[i], piece.input->name, piece.labelled[i], lines);
    }
    num_bytes_ += static_cast<int64_t>(piece.chunk.text.size());
    num_records_ += piece.chunk.num_records;
  }

  void take(Piece& base) override {
    auto& piece = static_cast<SurveyPiece&>(base);
    walk_.count(piece);
    for (size_t i = 0; i < piece.records.size(); ++i) {
      const LabelledRecord& labelled = piece.labelled[i];
      const int64_t copies = piece.input->share.copies(piece.records[i].number);
      if (labelled.faults.empty()) {
        count(labelled, walk_.file_of(piece), copies);
      } else if (copies > 0) {
        add_fault(labelled.faults.front());
      }
      if (copies > 0) choice_.show(piece.input->name, labelled, piece.records[i]);
    }
  }

  void poll() override {
    if (poll_) poll_({num_bytes_, num_records_});
  }

  Survey finish() {
    survey_.summary.report.set_formats(walk_.formats(labeller_));
    survey_.num_matching = choice_.num_matching();
    survey_.chosen = choice_.take();
    for (SurveyedRecord& record : survey_.chosen) {
      record.explanation = explain(labeller_, record.conversation);
    }
    return std::move(survey_);
  }

 private:
  struct SurveyPiece : Piece, InputChunk {
    std::vector<LabelledRecord> labelled;
  };

  void label(SurveyPiece& piece) const {
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

  void count(const LabelledRecord& labelled, const std::string& file, int64_t copies) {
    for (int64_t i = 0; i < copies; ++i) survey_.summary.report.add(labelled, file);
    if (!labelled.has_row() || copies == 0) return;
    int64_t learned = 0;
    for (const TokenSpan& span : labelled.labels.example.learned) learned += span.end - span.begin;
    survey_.lengths[static_cast<int64_t>(labelled.labels.example.ids.size())] += copies;
    survey_.learned[learned] += copies;
  }

  void add_fault(const DataFault& fault) {
    ++survey_.summary.num_faults;
    if (survey_.summary.faults.size() < kMaxFaults) survey_.summary.faults.push_back(fault);
  }

  Survey survey_;
  RecordChoice choice_;
  InputWalk walk_;
  const Labeller& labeller_;
  const Poll& poll_;
  std::atomic<int64_t> num_bytes_ = 0;
  std::atomic<int64_t> num_records_ = 0;
};

}  // namespace

Survey survey_data(std::vector<DataInput> inputs, const Labeller& labeller,
                   const SurveyChoice& choice,
                   const std::function<void(const LabelProgress&)>& poll) {
  choice.check();
  SurveyWork work(std::move(inputs), labeller, choice, poll);
  run_in_order(work, labeller.is_concurrent() ? labeller.options().num_threads : 1);
  return work.finish();
}

}  // namespace fastsft
