#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/master/master.h"

namespace fastsft::cuda {

// The formula is in ops/sgd/sgd.h; `scalars` is the block of ops/gradient/step_scalars.h on the
// device.
struct SgdArgs {
  MasterArgs master;
  const void* grad;
  const double* scalars;
  int64_t count;
  float lr, weight_decay;
  int width;  // elements per thread: 8 if every pointer is 16-byte aligned, else 1
};
void launch_sgd(const SgdArgs& args, Dtype grad, cudaStream_t stream);

}  // namespace fastsft::cuda
