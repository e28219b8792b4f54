#include "data/batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"

namespace fastsft {
namespace {

template <typename T>
at::Tensor to_tensor(const std::vector<T>& values) {
  const auto dtype = c10::CppTypeToScalarType<T>::value;
  at::Tensor tensor =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions().dtype(dtype));
  std::copy(values.begin(), values.end(), tensor.data_ptr<T>());
  return tensor;
}

class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t vocab_size) : vocab_size_(vocab_size), cu_seqlens_{0} {}

  template <typename Id>
  void add_tokens(std::span<const Id> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      require(ids[i] >= 0 && ids[i] < vocab_size_, "token ", i, " has id ", ids[i],
              ", which is not in the model's vocabulary of ", vocab_size_,
              "; do tokenizer and model belong together?");
      input_ids_.push_back(ids[i]);
      positions_.push_back(static_cast<int32_t>(i));
    }
    cu_seqlens_.push_back(static_cast<int32_t>(input_ids_.size()));
  }

  void add_label(int64_t position, int64_t target, double weight) {
    require(target >= 0 && target < vocab_size_, "a label has id ", target,
            ", which is not in the model's vocabulary of ", vocab_size_);
    label_positions_.push_back(position);
    targets_.push_back(target);
    token_weights_.push_back(static_cast<float>(weight));
  }

  int64_t num_tokens() const { return static_cast<int64_t>(input_ids_.size()); }

  Batch build() const {
    return {.input_ids = to_tensor(input_ids_),
            .positions = to_tensor(positions_),
            .cu_seqlens = to_tensor(cu_seqlens_),
            .label_positions = to_tensor(label_positions_),
            .targets = to_tensor(targets_),
            .token_weights = to_tensor(token_weights_)};
  }

 private:
  int64_t vocab_size_;
  std::vector<int64_t> input_ids_;
  std::vector<int32_t> positions_, cu_seqlens_;
  std::vector<int64_t> label_positions_, targets_;
  std::vector<float> token_weights_;
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

Batch make_batch(const TokenDataset& dataset, std::span<const int64_t> rows,
                 std::span<const double> weights, int64_t vocab_size) {
  require(rows.size() == weights.size(), rows.size(), " rows with ", weights.size(), " weights");
  BatchBuilder builder(vocab_size);
  for (size_t i = 0; i < rows.size(); ++i) add_conversation(dataset, rows[i], weights[i], builder);
  return builder.build();
}

Batch make_unlabelled_batch(std::span<const int64_t> ids, std::span<const int64_t> lengths,
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
