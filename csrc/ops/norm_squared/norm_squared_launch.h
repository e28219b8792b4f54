#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/dtype.h"

namespace fastsft::cuda {

inline constexpr int kNormSquaredBlocks = 1024;

// out += sum of x^2 over `count` elements; `parts` holds kNormSquaredBlocks sums between the two
// stages. `width` is the elements of one access: of 16 bytes, or 1.
void launch_norm_squared(const void* x, int64_t count, int width, double* parts, double* out,
                         Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
