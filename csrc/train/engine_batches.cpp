// The rows of a step as batches of the model.

#include <algorithm>

#include "train/engine.h"

namespace fastsft {

BatchRules Engine::batch_rules(bool find_packed) const {
  int64_t smallest = 0;
  for (const int64_t window : config().windows) {
    if (window > 0) smallest = smallest == 0 ? window : std::min(smallest, window);
  }
  return {.vocab_size = config().vocab_size,
          .window = smallest,
          .find_packed = find_packed,
          .token_keys = dropout_seed_ && adapters().dropout > 0};
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
