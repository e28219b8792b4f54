#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formula is in ops/rope/rope.h. `stride` is x's row stride in elements; `width`, the elements
// per thread, divides `half`.
struct RopeArgs {
  void* x;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  int64_t rows, stride;
  int num_heads, half;
  float direction;  // 1, or -1 for the inverse
  int width;
};
void launch_rope(const RopeArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
