#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Most blocks that look for a matrix's largest magnitude; each writes one part.
inline constexpr int64_t kFp8Parts = 1024;

// The formula is in ops/fp8/fp8.h. Matrices are contiguous.
struct Fp8Args {
  const void* x;
  uint8_t* out;
  float* scales;
  float* parts;  // [parts_count], for amax of the matrix; null for that of each row
  int64_t rows;
  int64_t columns;
  int64_t parts_count;
  bool e5m2;
  bool power_of_2;
  int access;  // elements per memory access
  bool words;  // transposed: rows of `out` begin at multiples of four bytes
};
void launch_fp8_quantize(const Fp8Args& args, Dtype dtype, cudaStream_t stream);
void launch_fp8_quantize_transposed(const Fp8Args& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
