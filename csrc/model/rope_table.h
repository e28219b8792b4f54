#pragma once

#include <ATen/core/Tensor.h>

#include "model/config.h"

namespace fastsft {

// cos and sin [positions, head_dim / 2] float32, computed as transformers does
// (modeling_rope_utils): inverse frequencies in float32, scaled, times the position in float32.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};
RopeTable make_rope_table(const ModelConfig& config, int64_t positions);

}  // namespace fastsft
