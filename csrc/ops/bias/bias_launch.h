#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// x += bias on every row (ops/bias/bias.h); `access` is the elements of one access.
void launch_add_bias(void* x, const void* bias, int64_t rows, int64_t width, int access,
                     Dtype dtype, cudaStream_t stream);

inline constexpr int kBiasParts = 256;
// parts [kBiasParts, width] receives sums of some of the rows of grad; their sum is the gradient
// (ops/cuda/column_sums.h).
void launch_bias_parts(const void* grad, int64_t rows, int64_t width, int access, float* parts,
                       Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
