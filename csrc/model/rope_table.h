#pragma once

#include <ATen/core/Tensor.h>

#include "model/rope_scaling.h"

namespace fastsft {

// [head_dim / 2] float32.
at::Tensor rotary_frequencies(const RopeSettings& rope, int64_t head_dim);

// cos and sin [positions, head_dim / 2] float32, computed as transformers does
// (modeling_rope_utils): frequencies in float32, times the position in float32, and the scaling's
// factor.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

// std::invalid_argument where the frequencies of `needed` positions depend on the batch.
void check_positions(const RopeSettings& rope, int64_t needed);

// For `needed` positions and up to `spare` more. std::invalid_argument as check_positions.
RopeTable make_rope_table(const RopeSettings& rope, int64_t head_dim, int64_t needed,
                          int64_t spare = 0);

}  // namespace fastsft
