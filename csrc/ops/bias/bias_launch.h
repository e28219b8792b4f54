#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Adds `bias` to every row (ops/bias/bias.h). `access` is the number of elements per memory access.
void launch_add_bias(void* x, const void* bias, int64_t rows, int64_t width, int access,
                     Dtype dtype, cudaStream_t stream);

inline constexpr int kBiasParts = 256;
// Writes partial sums of grad's rows to `parts` [kBiasParts, width]; the sum of the parts is the
// gradient (ops/cuda/column_sums.h).
void launch_bias_parts(const void* grad, int64_t rows, int64_t width, int access, float* parts,
                       Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
