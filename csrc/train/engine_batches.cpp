// The rows of a step as batches of the model.

#include "train/engine.h"

namespace fastsft {

BatchRules Engine::batch_rules(bool find_packed) const {
  return {.vocab_size = vocab_size(),
          .window = model_->smallest_window(),
          .find_packed = find_packed,
          .token_keys = dropout_seed_ && model_->has_token_draws()};
}

HostBatch Engine::batch_of(const TokenDataset& dataset, const MicroBatch& micro_batch,
                           bool find_packed) {
  check_usable();
  try {
    return make_batch(dataset, micro_batch.rows, micro_batch.weights, batch_rules(find_packed));
  } catch (
      ...) {  // the other ranks have begun: whatever this one called next would meet their step
    broken_ = communicator().world_size() > 1;
    throw;
  }
}

}  // namespace fastsft
