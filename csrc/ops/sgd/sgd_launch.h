#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/dtype.h"

namespace fastsft::cuda {

// Formula: ops/sgd/sgd.h; `control` is ops/clip_control/control_slots.h on the device.
struct SgdArgs {
  void* param;         // float32, or int16: the lower half of a split master
  void* compute_copy;  // bfloat16, or float16 of a whole master; null: none
  const void* grad;
  const double* control;
  int64_t count;
  float lr, weight_decay;
  bool half_copy;  // compute_copy is float16
  int width;       // elements of one thread at once: 8 when every pointer is aligned to 16 bytes
};
void launch_sgd(const SgdArgs& args, bool split_master, Dtype grad, cudaStream_t stream);

}  // namespace fastsft::cuda
