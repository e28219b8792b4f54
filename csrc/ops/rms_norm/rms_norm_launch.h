#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Formulas and overwritten arguments: ops/rms_norm/rms_norm.h. All pointers are on the current
// device; work is enqueued on `stream` and not waited for. `width` is the elements of one access,
// `plan` how threads share a row (ops/cuda/access.h).
struct RmsNormArgs {
  const void* x;
  const void* residual;  // null: no residual
  const void* weight;
  void* sum;
  void* out;
  float* rstd;
  int64_t rows, hidden;
  float eps;
  float offset;  // of the weight
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
  // [blocks * plan.rows_per_block, hidden]: weight gradients of some of the rows; null: not wanted.
  float* parts;
  int64_t rows, hidden;
  int64_t blocks;
  bool recompute;  // grad_out is overwritten by what the forward pass wrote
  float offset;
  int width;
  RowPlan plan;
};
inline constexpr int64_t kRmsNormBlocks = 512;  // at most: four for each multiprocessor, nearly
// Fills `parts`, if any; their sum is the weight gradient (ops/cuda/column_sums.h).
void launch_rms_norm_backward(const RmsNormBackwardArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
