#pragma once

#include <ATen/core/Tensor.h>

#include "shard/unit_state.h"

namespace fastsft {

// The master weights of a state, whether they are split or not (rule: ops/master/master.h).

// float32 where the master lives: itself, or joined from its halves.
at::Tensor read_master(const UnitState& state);
// `values` (flat, any floating dtype, any device) become elements [begin, begin + numel) of the
// range; of a split master both halves are written.
void write_master(const UnitState& state, int64_t begin, const at::Tensor& values);

// `copy` (bfloat16 or float16) receives `master` (float32) as adamw would write it.
void round_master(const at::Tensor& master, const at::Tensor& copy);

}  // namespace fastsft
