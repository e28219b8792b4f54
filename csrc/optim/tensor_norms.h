#pragma once

#include <ATen/core/Tensor.h>

#include "shard/strategy.h"

namespace fastsft {

// The squared L2 norm of the gradients of a replicated strategy, added to `out` [1] float64, with
// the rounding of torch.nn.utils.clip_grad_norm_: a float32 norm of each tensor, then the norm of
// these. On CPUs that of a large tensor is off by up to 1e-3 (docs/decisions.md).
void add_tensor_norms_squared(Strategy& strategy, const at::Tensor& out);

}  // namespace fastsft
