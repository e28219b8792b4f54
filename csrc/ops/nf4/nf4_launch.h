#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The layouts are in ops/nf4/nf4.h. `out` is aligned to two elements.
struct Nf4Args {
  const uint8_t* packed;
  const float* scales;
  const float* levels;
  void* out;
  int64_t blocks;
};
void launch_nf4_dequantize(const Nf4Args& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
