#pragma once

#include <memory>
#include <vector>

#include "model/model.h"

namespace fastsft {

// Another library's forward and backward over a GenericModel's units. The implementation gathers
// and releases the strategy's units, and reduces every unit once in forward_backward, in the same
// order on all ranks. Batches may be empty.
class ModelCalls {
 public:
  virtual ~ModelCalls() = default;
  virtual void forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                                const at::Tensor& loss) = 0;
  virtual void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                            const at::Tensor& loss) = 0;
  virtual at::Tensor logits(const Batch& batch, Strategy& strategy) = 0;
};

// A GenericModel's units and sizes.
struct GenericLayout {
  // Trained and frozen units. The first unit of each list stays gathered during a whole
  // micro-batch.
  std::vector<ParamUnit> units, frozen;
  int64_t vocab_size = 0;
  int64_t embedding_parameters = 0;
};

// A model with the forward and backward of another library.
class GenericModel : public Model {
 public:
  GenericModel(GenericLayout layout, std::unique_ptr<ModelCalls> calls)
      : layout_(std::move(layout)), calls_(std::move(calls)) {}

  const std::vector<ParamUnit>& units() const override { return layout_.units; }
  const std::vector<ParamUnit>& frozen_units() const override { return layout_.frozen; }
  size_t resident_units() const override { return 1; }
  size_t resident_frozen_units() const override { return layout_.frozen.empty() ? 0 : 1; }
  int64_t vocab_size() const override { return layout_.vocab_size; }
  int64_t embedding_parameters() const override { return layout_.embedding_parameters; }
  // Returns 1: the layers' windows are unknown, so masked tokens must stay in the batch.
  int64_t smallest_window() const override { return 1; }

  void reserve(const MicroBatchSize&) override {}
  // Throws std::invalid_argument for embedding noise, which is not supported.
  void forward_backward(const Batch& batch, Strategy& strategy, const TrainingPass& pass,
                        const at::Tensor& loss) override;
  void forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                    const at::Tensor& loss) override;
  at::Tensor logits(const Batch& batch, Strategy& strategy) override;
  bool norms_by_tensor() const override { return true; }
  int64_t buffer_bytes() const override { return 0; }
  int64_t num_parameters() const override {
    return elements_of(layout_.units) + elements_of(layout_.frozen);
  }
  int64_t num_trained_parameters() const override { return Model::num_parameters(); }

 private:
  GenericLayout layout_;
  std::unique_ptr<ModelCalls> calls_;
};

}  // namespace fastsft
