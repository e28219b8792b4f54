#include "core/ordered_work.h"
#include "data/input_walk.h"

namespace fastsft {
namespace {

class CountWork : public OrderedWork {
 public:
  explicit CountWork(std::vector<DataInput> inputs) : walk_(std::move(inputs)) {}

  std::unique_ptr<Piece> make() override {
    auto piece = std::make_unique<CountPiece>();
    return walk_.next(*piece) ? std::move(piece) : nullptr;
  }

  bool is_alone(const Piece& piece) const override {
    return static_cast<const CountPiece&>(piece).chunk.is_large();
  }

  void work(Piece& base) override {
    auto& piece = static_cast<CountPiece&>(base);
    piece.parse();
    for (const Conversation& record : piece.records) {
      const int64_t copies = piece.input->share.copies(record.number);
      piece.counts.num_records += copies;
      piece.counts.num_messages += copies * static_cast<int64_t>(record.messages.size());
      for (const Message& message : record.messages) {
        piece.counts.num_text_bytes += copies * static_cast<int64_t>(message.value.text.size());
      }
    }
    piece.records.clear();
  }

  void take(Piece& base) override {
    const DataCounts& counts = static_cast<CountPiece&>(base).counts;
    total.num_records += counts.num_records;
    total.num_messages += counts.num_messages;
    total.num_text_bytes += counts.num_text_bytes;
  }

  DataCounts total;

 private:
  struct CountPiece : Piece, InputChunk {
    DataCounts counts;
  };

  InputWalk walk_;
};

}  // namespace

DataCounts count_data(std::vector<DataInput> inputs, int num_threads) {
  CountWork work(std::move(inputs));
  run_in_order(work, num_threads);
  return work.total;
}

}  // namespace fastsft
