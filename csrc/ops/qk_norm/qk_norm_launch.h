#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Formulas: ops/qk_norm/qk_norm.h. `queries` and `keys` are numbers of heads, `dim` elements each.
struct QkNormArgs {
  const void* x;
  const void* weight;
  float* rstd;
  int64_t tokens, width;
  int queries, keys, dim;
  int access;    // elements of one access; divides dim and width
  float offset;  // of the weight
};

// The widest head that the kernels keep in registers.
inline constexpr int kQkNormMaxDim = 256;

void launch_qk_norm(const QkNormArgs& args, void* out, float eps, Dtype dtype, cudaStream_t stream);

inline constexpr int kQkNormWarps = 4;  // of one block; a warp takes a head or writes one part
inline constexpr int64_t kQkNormMaxParts = 8192;
// `grad` in place; parts [count, 2, dim] receives the weight gradients of some of the
// tokens; count is a multiple of kQkNormWarps. Null `parts`: they are not wanted.
void launch_qk_norm_backward(const QkNormArgs& args, void* grad, float* parts, int64_t count,
                             Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
