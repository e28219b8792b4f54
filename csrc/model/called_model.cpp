#include "model/called_model.h"

#include "core/error.h"
#include "core/whereabouts.h"

namespace fastsft {

void CalledModel::use_embedding_noise(const EmbeddingNoise& noise) {
  require(noise.magnitude == 0,
          "neftune_noise_alpha: expected none with the generic engine, which adds no noise to "
          "embeddings; leave it out, or train a model that has a native engine");
}

void CalledModel::forward_backward(const Batch& batch, Strategy& strategy, double label_smoothing,
                                   const at::Tensor& loss) {
  const Phase phase("forward and backward");
  calls_->forward_backward(batch, strategy, draws_, label_smoothing, loss);
}

void CalledModel::forward_loss(const Batch& batch, Strategy& strategy, double label_smoothing,
                               const at::Tensor& loss) {
  const Phase phase("forward");
  calls_->forward_loss(batch, strategy, label_smoothing, loss);
}

at::Tensor CalledModel::logits(const Batch& batch, Strategy& strategy) {
  const Phase phase("forward");
  return calls_->logits(batch, strategy);
}

}  // namespace fastsft
