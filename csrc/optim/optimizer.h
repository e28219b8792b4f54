#pragma once

#include <ATen/core/Tensor.h>

#include "shard/strategy.h"

namespace fastsft {

// Hyper-parameters of one optimizer step, as the schedule and the flags give them.
struct AdamWOptions {
  double learning_rate = 5e-5;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  // on the decay range of each unit only
  int64_t rounding_seed = 0;  // of the stochastic rounding of bfloat16 moments
};

// Updates this rank's ranges of all units from their summed gradients, by grad_scale and step of
// `control` (ops/clip_control/control_slots.h). Nothing changes when grad_scale is not finite.
void adamw_update(Strategy& strategy, const AdamWOptions& options, const at::Tensor& control);

// The squared L2 norm of this rank's gradient ranges, added to `out` [1] float64. On strategies
// that shard, the sum over ranks is the whole norm; on replicated ones it is whole already.
void add_local_norm_squared(Strategy& strategy, const at::Tensor& out);

}  // namespace fastsft
