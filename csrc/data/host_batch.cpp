#include "data/host_batch.h"

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t vocab_size) : vocab_size_(vocab_size) {
    batch_.cu_seqlens.push_back(0);
  }

  template <typename Id>
  void add_tokens(std::span<const Id> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      require(ids[i] >= 0 && ids[i] < vocab_size_, "token ", i, " has id ", ids[i],
              ", which is not in the model's vocabulary of ", vocab_size_,
              "; do tokenizer and model belong together?");
      batch_.input_ids.push_back(ids[i]);
      batch_.positions.push_back(static_cast<int32_t>(i));
    }
    batch_.cu_seqlens.push_back(static_cast<int32_t>(batch_.input_ids.size()));
    batch_.max_seqlen = std::max(batch_.max_seqlen, static_cast<int64_t>(ids.size()));
  }

  void add_label(int64_t position, int64_t target, double weight) {
    require(target >= 0 && target < vocab_size_, "a label has id ", target,
            ", which is not in the model's vocabulary of ", vocab_size_);
    batch_.label_positions.push_back(position);
    batch_.targets.push_back(target);
    batch_.token_weights.push_back(static_cast<float>(weight));
  }

  int64_t num_tokens() const { return static_cast<int64_t>(batch_.input_ids.size()); }
  HostBatch build() { return std::move(batch_); }

 private:
  int64_t vocab_size_;
  HostBatch batch_;
};

void add_conversation(const TokenDataset& dataset, int64_t row, double weight,
                      BatchBuilder& builder) {
  if (dataset.num_targets(row) == 0) return;
  const auto ids = dataset.ids(row);
  const auto learned = dataset.learned(row);
  const int64_t begin = builder.num_tokens();
  builder.add_tokens(ids.first(static_cast<size_t>(learned.back().end - 1)));
  for (const TokenSpan& span : learned) {
    for (int32_t p = std::max(span.begin, 1); p < span.end; ++p) {
      builder.add_label(begin + p - 1, ids[static_cast<size_t>(p)], weight);
    }
  }
}

}  // namespace

HostBatch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                     std::span<const double> weights, int64_t vocab_size) {
  require(rows.size() == weights.size(), rows.size(), " rows with ", weights.size(), " weights");
  BatchBuilder builder(vocab_size);
  for (size_t i = 0; i < rows.size(); ++i) add_conversation(dataset, rows[i], weights[i], builder);
  return builder.build();
}

HostBatch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
                                int64_t vocab_size) {
  BatchBuilder builder(vocab_size);
  size_t at = 0;
  for (int64_t length : lengths) {
    require(length >= 0 && at + static_cast<size_t>(length) <= ids.size(), "lengths do not fit ",
            ids.size(), " ids");
    builder.add_tokens(ids.subspan(at, static_cast<size_t>(length)));
    at += static_cast<size_t>(length);
  }
  require(at == ids.size(), "lengths add up to ", at, ", but there are ", ids.size(), " ids");
  return builder.build();
}

}  // namespace fastsft
