#pragma once

#include <ATen/core/Tensor.h>

#include "shard/strategy.h"

namespace fastsft {

enum class UnitValues { kCompute, kMaster };

// Collective over the ranks of this copy: the unit's flat values without padding, whole on every
// rank, on the strategy's device. kCompute: what forward reads, in its dtype; kMaster: float32. The
// result is nobody else's memory.
at::Tensor whole_unit(Strategy& strategy, size_t unit, UnitValues values);

}  // namespace fastsft
