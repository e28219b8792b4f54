#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/gradient/gradient.h. Launches are asynchronous on `stream`.

// `width`: elements per thread; 8 if both tensors begin at 16-byte addresses, otherwise 1.
struct AccumulateArgs {
  void* total;
  const float* x;
  int64_t count;
  int width;
};
void launch_accumulate(const AccumulateArgs& args, Dtype total, cudaStream_t stream);

inline constexpr int kNormSquaredBlocks = 1024;
// out += the sum of x^2 over `count` elements, in two kernels; `parts` holds kNormSquaredBlocks
// partial sums between them. `width`: elements per memory access, either 16 bytes' worth or 1.
void launch_norm_squared(const void* x, int64_t count, int width, double* parts, double* out,
                         Dtype dtype, cudaStream_t stream);

void launch_compute_grad_scale(double* scalars, double max_norm, cudaStream_t stream);

}  // namespace fastsft::cuda
