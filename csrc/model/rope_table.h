#pragma once

#include <ATen/core/Tensor.h>

#include "model/config.h"
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

// std::invalid_argument where the frequencies of so many positions depend on the batch.
void check_positions(const RopeSettings& rope, int64_t positions);

// The tables of layers that see everything, and of those with a window; one for both where they do
// not differ.
struct RopeTables {
  RopeTable global, local;

  const RopeTable& of(int64_t window) const { return window > 0 ? local : global; }
  int64_t positions() const { return global.cos.size(0); }
};

// For `needed` positions and up to `spare` more. Throws as check_positions(needed).
RopeTables make_rope_tables(const ModelConfig& config, int64_t needed, int64_t spare,
                            at::Device device);

}  // namespace fastsft
