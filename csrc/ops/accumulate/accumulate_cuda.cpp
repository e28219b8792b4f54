#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/accumulate/accumulate.h"
#include "ops/accumulate/accumulate_launch.h"
#include "ops/cuda/arguments.h"

namespace fastsft {
namespace {

void accumulate_cuda(const at::Tensor& total, const at::Tensor& x) {
  check_accumulate(total, x);
  const c10::cuda::CUDAGuard guard(total.device());
  cuda::launch_accumulate({.total = total.data_ptr(),
                           .x = x.data_ptr<float>(),
                           .count = total.numel(),
                           .width = cuda::flat_width({total, x})},
                          cuda::dtype_of(total), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("accumulate", &accumulate_cuda); }

}  // namespace fastsft
