#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"
#include "ops/master/master.h"

namespace fastsft::cuda {

// Formula: ops/sgd/sgd.h; `scalars` is ops/gradient/step_scalars.h on the device.
struct SgdArgs {
  MasterArgs master;
  const void* grad;
  const double* scalars;
  int64_t count;
  float lr, weight_decay;
  int width;  // elements of one thread at once: 8 when every pointer is aligned to 16 bytes
};
void launch_sgd(const SgdArgs& args, Dtype grad, cudaStream_t stream);

}  // namespace fastsft::cuda
