#include "data/count_data.h"

#include <optional>

#include "chat/chunk_parser.h"
#include "core/ordered_work.h"

namespace fastsft {
namespace {

class CountWork : public OrderedWork {
 public:
  explicit CountWork(std::vector<DataInput> inputs) : inputs_(std::move(inputs)) {}

  std::unique_ptr<Piece> make() override {
    auto piece = std::make_unique<CountPiece>();
    for (; input_ < inputs_.size(); ++input_, reader_.reset()) {
      if (!reader_) open(inputs_[input_]);
      piece->input = &inputs_[input_];
      if (reader_->next(piece->chunk)) return piece;
    }
    return nullptr;
  }

  bool is_alone(const Piece& piece) const override {
    return static_cast<const CountPiece&>(piece).chunk.is_large();
  }

  void work(Piece& base) override {
    auto& piece = static_cast<CountPiece&>(base);
    std::vector<Conversation> records;
    ChunkParser(piece.input->name).parse(piece.chunk, piece.input->share, records);
    for (const Conversation& record : records) {
      const int64_t copies = piece.input->share.copies(record.number);
      piece.counts.num_records += copies;
      piece.counts.num_messages += copies * static_cast<int64_t>(record.messages.size());
      for (const Message& message : record.messages) {
        piece.counts.num_text_bytes += copies * static_cast<int64_t>(message.value.text.size());
      }
    }
  }

  void take(Piece& base) override {
    const DataCounts& counts = static_cast<CountPiece&>(base).counts;
    total.num_records += counts.num_records;
    total.num_messages += counts.num_messages;
    total.num_text_bytes += counts.num_text_bytes;
  }

  DataCounts total;

 private:
  struct CountPiece : Piece {
    const DataInput* input = nullptr;
    RecordChunk chunk;
    DataCounts counts;
  };

  void open(const DataInput& input) {
    reader_.emplace(*input.source, input.name, RecordReader::kBlockSize, input.max_record);
  }

  std::vector<DataInput> inputs_;
  size_t input_ = 0;
  std::optional<RecordReader> reader_;
};

}  // namespace

DataCounts count_data(std::vector<DataInput> inputs, int num_threads) {
  CountWork work(std::move(inputs));
  run_in_order(work, num_threads);
  return work.total;
}

}  // namespace fastsft
