#pragma once

#include <ATen/core/Tensor.h>

#include "shard/strategy.h"

namespace fastsft {

// The squared L2 norm of this rank's gradient ranges, added to `out` [1] float64. On strategies
// that shard, the sum over ranks is the whole norm; on replicated ones it is whole already.
void add_local_norm_squared(Strategy& strategy, const at::Tensor& out);

// min(1, max_norm / (norm + 1e-6)) as float32 [1] (torch.nn.utils.clip_grad_norm_); 1 when max_norm
// is 0; NaN when `norm` is not finite, so that the update does nothing.
at::Tensor clip_scale(double norm, double max_norm);

}  // namespace fastsft
