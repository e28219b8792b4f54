#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/fp8/fp8_launch.h"

namespace fastsft::cuda {

// The formulas and overwritten arguments are in ops/rms_norm/rms_norm.h. All pointers refer to the
// current device, and launches are asynchronous on `stream`. `width` is the element count per
// memory access; `plan` assigns rows to threads (ops/cuda/access.h).
struct RmsNormArgs {
  const void* x;
  const void* residual;  // null: no residual
  const void* weight;
  void* sum;
  void* out;  // null: only the copy in 8 bits is written
  float* rstd;
  Fp8Rows fp8;  // with values, x is bfloat16 and a row fits into registers
  int64_t rows, hidden;
  float eps;
  float offset;  // added to the weight
  int width;
  RowPlan plan;
};
void launch_rms_norm(const RmsNormArgs& args, Dtype dtype, cudaStream_t stream);

struct RmsNormBackwardArgs {
  void* grad_out;
  const void* x;
  const void* weight;
  const float* rstd;
  void* grad_x;
  // Partial weight gradients [blocks * plan.rows_per_block, hidden]; null if the weight is frozen.
  float* parts;
  int64_t rows, hidden;
  int64_t blocks;
  bool recompute;  // overwrite grad_out with the forward pass' `out`
  float offset;
  int width;
  RowPlan plan;
};
inline constexpr int64_t kRmsNormBlocks = 512;  // upper limit: about four per multiprocessor
// Computes grad_x, and writes `parts` unless it is null; their sum is the weight gradient
// (ops/cuda/column_sums.h).
void launch_rms_norm_backward(const RmsNormBackwardArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
