#pragma once

#include <ATen/core/Tensor.h>

#include "shard/param_unit.h"

namespace fastsft {

// What one rank owns of one unit for the optimizer: elements [begin, end) of the padded flat
// buffer. fp32, each of end - begin elements. When a strategy replicates, begin = 0 and end =
// padded numel.
struct UnitState {
  const ParamUnit* unit = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor master;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

}  // namespace fastsft
