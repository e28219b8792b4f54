#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/master/master.h"

namespace fastsft::cuda {

// The inputs for a range's next moments (formulas: ops/adamw8bit/adamw8bit.h).
struct Adamw8bitMomentArgs {
  const void* grad;
  Dtype dtype;
  uint8_t *state1, *state2;
  float *absmax1, *absmax2;
  const float* levels;
  const double* scalars;
  int64_t count;
  double beta1, beta2;
};
struct Adamw8bitArgs {
  Adamw8bitMomentArgs moments;
  MasterArgs master;
  double lr, eps, weight_decay;
  int64_t first;
  const float *first_edge, *last_edge;  // null if the range does not cut the block
};
void launch_adamw8bit(const Adamw8bitArgs& args, cudaStream_t stream);
void launch_adamw8bit_maxima(const Adamw8bitMomentArgs& moments, float* maxima,
                             cudaStream_t stream);

}  // namespace fastsft::cuda
