#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/grouped_gemm/grouped_gemm.h. Tensors are contiguous; `access` is the
// number of elements per memory access.
struct GroupedGemmArgs {
  const void *x, *weights;
  void* out;
  const int* offsets;
  int64_t experts, rows, inputs, outputs;
  bool transpose;
  int access;
};
void launch_grouped_gemm(const GroupedGemmArgs& args, Dtype dtype, cudaStream_t stream);

struct GroupedGradientArgs {
  const void *grad_y, *x;
  void* grad_weights;
  const int* offsets;
  int64_t experts, inputs, outputs;
  float beta;
  int access;
};
// `narrow`: grad_weights is bfloat16, not float32.
void launch_grouped_gradient(const GroupedGradientArgs& args, Dtype dtype, bool narrow,
                             cudaStream_t stream);

}  // namespace fastsft::cuda
