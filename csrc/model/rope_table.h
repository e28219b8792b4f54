#pragma once

#include <ATen/core/Tensor.h>

#include "model/config.h"
#include "model/rope_scaling.h"

namespace fastsft {

// Returns the frequencies [head_dim / 2] float32.
at::Tensor rotary_frequencies(const RopeSettings& rope, int64_t head_dim);

// cos and sin [positions, head_dim / 2] float32, computed like transformers' modeling_rope_utils:
// float32 frequencies times float32 positions, and the scaling's factor.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

// Throws std::invalid_argument if the frequencies for this many positions depend on the batch.
void check_positions(const RopeSettings& rope, int64_t positions);

// The tables of layers without a window (`global`) and with a window (`local`). Both are the same
// tensors if the layers' settings are equal.
struct RopeTables {
  RopeTable global, local;

  const RopeTable& of(int64_t window) const { return window > 0 ? local : global; }
  int64_t positions() const { return global.cos.size(0); }
};

// Makes tables for `needed` positions, and up to `spare` more. Throws like check_positions(needed).
RopeTables make_rope_tables(const ModelConfig& config, int64_t needed, int64_t spare,
                            at::Device device);

}  // namespace fastsft
