#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/clip_control/clip_control.h"
#include "ops/clip_control/clip_control_launch.h"

namespace fastsft {
namespace {

void clip_control_cuda(const at::Tensor& control, double max_norm) {
  check_clip_control(control, max_norm);
  const c10::cuda::CUDAGuard guard(control.device());
  cuda::launch_clip_control(control.data_ptr<double>(), max_norm,
                            c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("clip_control", &clip_control_cuda); }

}  // namespace fastsft
