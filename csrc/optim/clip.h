#pragma once

#include <ATen/core/Tensor.h>

#include "shard/strategy.h"

namespace fastsft {

// The squared L2 norm of this rank's gradient ranges, added to `out` [1] float64. On strategies
// that shard, the sum over ranks is the whole norm; on replicated ones it is whole already.
void add_local_norm_squared(Strategy& strategy, const at::Tensor& out);

}  // namespace fastsft
