#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Most blocks that look for a matrix's largest magnitude; each writes one part.
inline constexpr int64_t kFp8Parts = 1024;
// Most slices of the rows in which blocks look for the largest magnitude of each column. Every tile
// reads the parts of its columns again, so there are few.
inline constexpr int64_t kFp8Slices = 8;

// A quantised copy that another kernel writes of its result: e4m3, with a scale for each row.
struct Fp8Rows {
  uint8_t* values = nullptr;  // null: none
  float* scales = nullptr;
  bool power_of_2 = false;
};

// The formula is in ops/fp8/fp8.h. Matrices are contiguous.
struct Fp8Args {
  const void* x;
  uint8_t* out;
  float* scales;
  // Largest magnitudes: of parts of the matrix [parts_count], of columns [slices, columns], or null
  // if each row has its own.
  float* parts;
  int64_t rows;
  int64_t columns;
  int64_t width;  // of `out`, which is [rows, columns], or transposed [columns, width]
  int64_t parts_count;
  int64_t slices;  // 0: one scale for the matrix
  bool e5m2;
  bool power_of_2;
  int access;  // elements per memory access
  bool words;  // transposed: rows of `out` begin at multiples of four bytes
};
void launch_fp8_quantize(const Fp8Args& args, Dtype dtype, cudaStream_t stream);
void launch_fp8_quantize_transposed(const Fp8Args& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
