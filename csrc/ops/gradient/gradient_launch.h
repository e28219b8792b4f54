#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Formulas: ops/gradient/gradient.h. Enqueued on `stream` and not waited for.

// `width`: 8, where both begin at 16-byte addresses, or 1.
struct AccumulateArgs {
  void* total;
  const float* x;
  int64_t count;
  int width;
};
void launch_accumulate(const AccumulateArgs& args, Dtype total, cudaStream_t stream);

inline constexpr int kNormSquaredBlocks = 1024;
// out += sum of x^2 over `count` elements; `parts` holds kNormSquaredBlocks sums between the two
// stages. `width` is the elements of one access: of 16 bytes, or 1.
void launch_norm_squared(const void* x, int64_t count, int width, double* parts, double* out,
                         Dtype dtype, cudaStream_t stream);

void launch_compute_grad_scale(double* scalars, double max_norm, cudaStream_t stream);

}  // namespace fastsft::cuda
