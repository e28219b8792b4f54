#include "data/input_walk.h"

#include <algorithm>

#include "chat/template_fields.h"

namespace fastsft {

void InputChunk::parse() {
  ChunkParser parser(input->name, format, input->format != kAutoFormat);
  parser.parse(chunk, input->share, records);
  unused = parser.unused();
}

InputWalk::InputWalk(std::vector<DataInput> inputs) : inputs_(std::move(inputs)) {
  for (const DataInput& input : inputs_) check_format_name(input.format);
  formats_.resize(inputs_.size());
}

bool InputWalk::next(InputChunk& chunk) {
  for (; index_ < inputs_.size(); ++index_, reader_.reset(), format_.reset()) {
    const DataInput& input = inputs_[index_];
    if (!reader_)
      reader_.emplace(*input.source, input.name, RecordReader::kBlockSize, input.max_record);
    if (!reader_->next(chunk.chunk)) continue;
    if (!format_) format_ = choose_format(chunk.chunk, input.format);
    chunk.input = &input;
    chunk.index = index_;
    chunk.format = *format_;
    return true;
  }
  return false;
}

std::vector<DataReport::FormatUse> InputWalk::formats(const Labeller& labeller) const {
  std::vector<DataReport::FormatUse> formats = formats_;
  const TemplateFields fields(labeller.options().template_fields);
  for (DataReport::FormatUse& use : formats) {
    std::erase_if(use.unused, [&](const std::string& name) { return fields.writes(name); });
  }
  return formats;
}

const std::string& InputWalk::file_of(const InputChunk& chunk) const {
  static const std::string none;
  return inputs_.size() > 1 ? chunk.input->name : none;
}

void InputWalk::count(const InputChunk& chunk) {
  DataReport::FormatUse& use = formats_[chunk.index];
  use.name = chunk.format.name;
  use.title = chunk.format.format().title;
  use.column = chunk.format.column;
  use.count += chunk.chunk.num_records;
  for (const std::string& name : chunk.unused.names()) {
    if (std::find(use.unused.begin(), use.unused.end(), name) == use.unused.end()) {
      use.unused.push_back(name);
    }
  }
}

namespace {

struct CountChunk : InputChunk {
  DataCounts counts;
};

class CountWork : public InputWork<CountChunk> {
 public:
  using InputWork::InputWork;
  DataCounts total;

 private:
  void process(CountChunk& chunk) override {
    chunk.parse();
    for (const Conversation& record : chunk.records) {
      const int64_t copies = chunk.input->share.copies(record.number);
      chunk.counts.num_records += copies;
      chunk.counts.num_messages += copies * static_cast<int64_t>(record.messages.size());
      for (const Message& message : record.messages) {
        chunk.counts.num_text_bytes += copies * static_cast<int64_t>(message.value.text.size());
      }
    }
    chunk.records.clear();
  }

  void consume(CountChunk& chunk) override {
    total.num_records += chunk.counts.num_records;
    total.num_messages += chunk.counts.num_messages;
    total.num_text_bytes += chunk.counts.num_text_bytes;
  }
};

}  // namespace

DataCounts count_data(std::vector<DataInput> inputs, int num_threads) {
  CountWork work(std::move(inputs));
  work.run(num_threads);
  return work.total;
}

}  // namespace fastsft
