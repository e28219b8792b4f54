#include "data/label_data.h"

namespace fastsft {
namespace {

// Adds one record to sink and summary. `file`: the record's file name; "" if there is only one.
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

class LabelWork : public InputWork<LabelledChunk> {
 public:
  LabelWork(std::vector<DataInput> inputs, const Labeller& labeller, LabelSink& sink,
            const PollProgress& poll)
      : InputWork(std::move(inputs), poll), labeller_(labeller), sink_(sink) {}

  LabelSummary finish() {
    summary_.report.set_formats(walk_.formats(labeller_));
    return std::move(summary_);
  }

 private:
  void process(LabelledChunk& chunk) override {
    chunk.parse_and_label(labeller_);
    if (!chunk.input->has_places) return;
    for (size_t i = 0; i < chunk.records.size(); ++i) {
      place_findings(chunk.chunk, chunk.records[i], chunk.input->name, chunk.labelled[i],
                     chunk.bad_records);
    }
  }

  void consume(LabelledChunk& chunk) override {
    for (size_t i = 0; i < chunk.records.size(); ++i) {
      const int64_t copies = chunk.input->share.copies(chunk.records[i].number);
      for (int64_t k = 0; k < copies; ++k) {
        add(chunk.labelled[i], walk_.file_of(chunk), k == 0, sink_, summary_);
      }
    }
    if (!chunk.bad_records.empty()) sink_.add_bad_records(chunk.bad_records);
  }

  LabelSummary summary_;
  const Labeller& labeller_;
  LabelSink& sink_;
};

}  // namespace

void LabelledChunk::parse_and_label(const Labeller& labeller) {
  parse();
  label(labeller);
}

void LabelledChunk::label(const Labeller& labeller) {
  labeller.split(records);
  if (!labeller.is_concurrent()) {
    labelled = labeller.label(records);
    return;
  }
  Transcript transcript;
  LabelBuffers buffers;
  for (const Conversation& record : records) {
    labelled.push_back(labeller.label_one(record, transcript, buffers));
  }
}

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
                        const PollProgress& poll) {
  LabelWork work(std::move(inputs), labeller, sink, poll);
  work.run(labeller.is_concurrent() ? labeller.options().num_threads : 1);
  return work.finish();
}

}  // namespace fastsft
