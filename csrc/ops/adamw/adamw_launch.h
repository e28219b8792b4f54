#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/master/master.h"

namespace fastsft::cuda {

// The formula is in ops/adamw/adamw.h; `scalars` is the block of ops/gradient/step_scalars.h on the
// device.
struct AdamwArgs {
  MasterArgs master;
  const void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  const double* scalars;
  int64_t count;
  double lr, beta1, beta2, eps, weight_decay;
  uint64_t seed;
  int64_t first_element;
  int width;  // elements of one thread at once: 8 when every pointer is aligned to 16 bytes and
              // first_element is a multiple of 4, otherwise 1
};
struct AdamwDtypes {
  Dtype grad, moments;
};
void launch_adamw(const AdamwArgs& args, const AdamwDtypes& dtypes, cudaStream_t stream);

}  // namespace fastsft::cuda
