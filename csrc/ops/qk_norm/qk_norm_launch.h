#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/qk_norm/qk_norm.h. `queries` and `keys` are head counts; a head has `dim`
// elements.
struct QkNormArgs {
  const void* x;
  const void* weight;
  float* rstd;
  int64_t tokens, width;
  int queries, keys, dim;
  int access;    // elements per memory access; divides dim and width
  float offset;  // added to the weight
};

// Largest head size that the kernels keep in registers.
inline constexpr int kQkNormMaxDim = 256;

void launch_qk_norm(const QkNormArgs& args, void* out, float eps, Dtype dtype, cudaStream_t stream);

inline constexpr int kQkNormWarps = 4;  // warps per block; a warp handles a head
inline constexpr int64_t kQkNormMaxParts = 8192;
// Computes `grad` in place, and writes partial weight gradients to parts [count, 2, dim] unless it
// is null. `count` is a multiple of kQkNormWarps.
void launch_qk_norm_backward(const QkNormArgs& args, void* grad, float* parts, int64_t count,
                             Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
