#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/dtype.h"

namespace fastsft::cuda {

// Formula: ops/adamw.h; `control` is ops/control_slots.h on the device.
struct AdamwArgs {
  float* param;
  void* compute_copy;  // bfloat16; null: none
  const void* grad;
  float* exp_avg;
  float* exp_avg_sq;
  const double* control;
  int64_t count;
  double lr, beta1, beta2, eps, weight_decay;
  int width;  // elements of one access: 4 when every pointer is aligned to 4 elements, otherwise 1
};
void launch_adamw(const AdamwArgs& args, Dtype grad_dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
