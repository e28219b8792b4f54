#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/master/master.h"

namespace fastsft::cuda {

// The formulas are in ops/adafactor/adafactor.h. Launches are asynchronous on `stream`. The
// summation order does not depend on the device.

// Elements [first, first + count) of a tensor of matrices [rows, columns].
struct AdafactorPart {
  const void* grad;
  Dtype dtype;
  const double* scalars;
  int64_t first, count, rows, columns;
};

inline constexpr int kAdafactorBlocks = 512;  // partial sums of a norm
inline constexpr int64_t kAdafactorChunk = 32;
inline constexpr int64_t kAdafactorChunks = 256;
// Returns how many partial sums per column a part with `rows` rows needs.
inline int64_t adafactor_chunks(int64_t rows) {
  const int64_t chunks = (rows + kAdafactorChunk - 1) / kAdafactorChunk;
  return chunks < kAdafactorChunks ? chunks : kAdafactorChunks;
}

// `parts` is scratch memory for adafactor_chunks(rows) * columns partial sums.
void launch_adafactor_sums(const AdafactorPart& part, float* row_sums, float* column_sums,
                           float* parts, cudaStream_t stream);
struct AdafactorMomentsArgs {
  float *row_sums, *column_sums, *row, *column;
  const double* scalars;
  int64_t matrices, rows, columns;
};
void launch_adafactor_moments(const AdafactorMomentsArgs& moments, cudaStream_t stream);
// `parts` is scratch memory for kAdafactorBlocks partial sums between two kernels.
void launch_adafactor_norm(const AdafactorPart& part, const float* row_factors,
                           const float* column_factors, double* parts, double* out,
                           cudaStream_t stream);
struct AdafactorUpdateArgs {
  AdafactorPart part;
  MasterArgs master;
  const float *row_factors, *column_factors;
  const double* norm;
  int64_t size;
  double lr, weight_decay;
};
void launch_adafactor_update(const AdafactorUpdateArgs& update, cudaStream_t stream);

}  // namespace fastsft::cuda
