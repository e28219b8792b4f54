#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fastsft::cuda {

// Computes out = beta * out + the sum of the rows of parts [rows, columns], in a fixed order. If
// beta is 0, the old content of `out` is ignored.
void launch_column_sums(const float* parts, int64_t rows, int64_t columns, float beta, float* out,
                        cudaStream_t stream);

}  // namespace fastsft::cuda
