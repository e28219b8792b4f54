#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formula is in ops/dropout/dropout.h. `access` is the number of elements per memory access.
struct DropoutArgs {
  const void* x;
  const int32_t* keys;
  void* out;
  int64_t rows, width;
  uint64_t seed;
  uint32_t stream, first_kept;
  float scale;  // factor for kept elements
  float beta;
  int access;
};
void launch_dropout(const DropoutArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
