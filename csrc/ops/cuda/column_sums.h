#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fastsft::cuda {

// out = beta * out + the sum of the rows of parts [rows, columns], in a fixed order. With beta = 0
// what `out` held does not matter.
void launch_column_sums(const float* parts, int64_t rows, int64_t columns, float beta, float* out,
                        cudaStream_t stream);

}  // namespace fastsft::cuda
