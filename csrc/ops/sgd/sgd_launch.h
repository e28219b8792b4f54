#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/dtype.h"
#include "ops/master/master_launch.h"

namespace fastsft::cuda {

// Formula: ops/sgd/sgd.h; `control` is ops/clip_control/control_slots.h on the device.
struct SgdArgs {
  MasterArgs master;
  const void* grad;
  const double* control;
  int64_t count;
  float lr, weight_decay;
  int width;  // elements of one thread at once: 8 when every pointer is aligned to 16 bytes
};
void launch_sgd(const SgdArgs& args, Dtype grad, cudaStream_t stream);

}  // namespace fastsft::cuda
