#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/expert_rows/expert_rows.h. Rows are contiguous; `access` is the number of
// elements per memory access.
struct GatherRowsArgs {
  const void* x;
  const int* pairs;
  void* out;
  int64_t rows, chosen, width;
  int access;
};
void launch_gather_rows(const GatherRowsArgs& args, Dtype dtype, cudaStream_t stream);

struct CombineRowsArgs {
  const void* grouped;
  const int* rows;
  const void* weights;  // null: all 1
  const void* addend;
  void* out;
  int64_t tokens, chosen, width;
  int access;
};
void launch_combine_rows(const CombineRowsArgs& args, Dtype dtype, cudaStream_t stream);

struct ExpertSwigluArgs {
  void *grad_out, *gate_up;
  const void* weights;
  const int* pairs;
  float* grad_weights;
  int64_t rows, width;
  int access;
};
void launch_expert_swiglu_backward(const ExpertSwigluArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
