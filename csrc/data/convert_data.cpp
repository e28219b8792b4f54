#include "data/convert_data.h"

namespace fastsft {
namespace {

struct ConvertChunk : InputChunk {
  std::string text;
  std::string bad_lines;
  std::vector<RecordError> faults;
  size_t num_written = 0;
};

class ConvertWork : public InputWork<ConvertChunk> {
 public:
  ConvertWork(std::vector<DataInput> inputs, const ConvertOptions& options, const ConvertSink& sink)
      : InputWork(std::move(inputs), sink.poll),
        options_(options),
        sink_(sink),
        writer_(options.format) {}

  ConvertSummary finish() {
    if (options_.as_array) sink_.write(summary_.num_written == 0 ? "[]\n" : "\n]\n");
    summary_.formats = walk_.formats();
    // Fields that the writer writes, too.
    for (auto& use : summary_.formats) {
      std::erase_if(use.unused, [](const std::string& name) {
        return name == "tools" || name == "chat_template_kwargs" || name == "enable_thinking";
      });
    }
    return std::move(summary_);
  }

 private:
  void process(ConvertChunk& chunk) override {
    chunk.parse();
    for (const Conversation& record : chunk.records) convert(record, chunk);
  }

  void consume(ConvertChunk& chunk) override {
    summary_.num_records += static_cast<int64_t>(chunk.num_written + chunk.faults.size());
    summary_.num_faults += static_cast<int64_t>(chunk.faults.size());
    for (RecordError& fault : chunk.faults) {
      if (summary_.faults.size() < kMaxFaults) summary_.faults.push_back(std::move(fault));
    }
    if (!chunk.bad_lines.empty()) sink_.write_bad(chunk.bad_lines);
    if (chunk.num_written == 0) return;
    if (options_.as_array) sink_.write(summary_.num_written == 0 ? "[\n" : ",\n");
    summary_.num_written += static_cast<int64_t>(chunk.num_written);
    sink_.write(chunk.text);
  }

  void convert(const Conversation& record, ConvertChunk& chunk) const {
    std::string line;
    if (auto found = writer_.write(record, line)) {
      chunk.bad_lines +=
          bad_record_line(chunk.chunk, record, chunk.input->name, *found, "left out");
      add_fault(record, *found, chunk);
      return;
    }
    const int64_t copies = chunk.input->share.copies(record.number);
    for (int64_t i = 0; i < copies; ++i, ++chunk.num_written) {
      if (options_.as_array && chunk.num_written != 0) chunk.text += ",\n";
      chunk.text += line;
      if (!options_.as_array) chunk.text += '\n';
    }
  }

  static void add_fault(const Conversation& record, const RecordIssue& found, ConvertChunk& chunk) {
    RecordError fault;
    fault.kind = PythonError::kValueError;
    fault.record = record.number;
    fault.id = record.id;
    fault.message = found.message;
    fault.reason = found.reason;
    fault.remark = found.remark;
    Place place = find_place(chunk.chunk, record, found.message);
    fault.file = chunk.input->name;
    fault.line = place.line;
    fault.byte = place.byte;
    fault.excerpt = std::move(place.excerpt);
    chunk.faults.push_back(std::move(fault));
  }

  ConvertOptions options_;
  const ConvertSink& sink_;
  RecordWriter writer_;
  ConvertSummary summary_;
};

}  // namespace

ConvertSummary convert_data(std::vector<DataInput> inputs, const ConvertOptions& options,
                            const ConvertSink& sink) {
  ConvertWork work(std::move(inputs), options, sink);
  work.run(options.num_threads);
  return work.finish();
}

}  // namespace fastsft
