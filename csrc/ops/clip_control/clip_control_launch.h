#pragma once

#include <cuda_runtime_api.h>

namespace fastsft::cuda {

// Formula: ops/clip_control/clip_control.h. Enqueued on `stream` and not waited for.
void launch_clip_control(double* control, double max_norm, cudaStream_t stream);

}  // namespace fastsft::cuda
