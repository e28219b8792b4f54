#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/dtype.h"

namespace fastsft::cuda {

// `width`: 8, where both begin at 16-byte addresses, or 1.
struct AccumulateArgs {
  void* total;
  const float* x;
  int64_t count;
  int width;
};
void launch_accumulate(const AccumulateArgs& args, Dtype total, cudaStream_t stream);

}  // namespace fastsft::cuda
