#include "model/generic_model.h"

#include "core/error.h"
#include "core/rank_status.h"

namespace fastsft {

void GenericModel::forward_backward(const Batch& batch, Strategy& strategy,
                                    const TrainingPass& pass, const at::Tensor& loss) {
  require(pass.noise.magnitude == 0,
          "neftune_noise_alpha: expected none with the generic engine, which adds no noise to "
          "embeddings; leave it out, or train a model that has a native engine");
  const ScopedPhase phase("forward and backward");
  calls_->forward_backward(batch, strategy, pass, loss);
}

void GenericModel::forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                                const at::Tensor& loss) {
  const ScopedPhase phase("forward");
  calls_->forward_loss(batch, strategy, label_smoothing, loss);
}

at::Tensor GenericModel::logits(const Batch& batch, Strategy& strategy) {
  const ScopedPhase phase("forward");
  return calls_->logits(batch, strategy);
}

}  // namespace fastsft
