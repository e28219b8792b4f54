#include "ops/sgd/sgd.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/sgd/sgd_launch.h"

namespace fastsft {
namespace {

void sgd_cuda(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
              const at::Tensor& grad, const at::Tensor& scalars, double lr, double weight_decay) {
  check_sgd(param, compute_copy, grad, scalars, lr, weight_decay);
  const c10::cuda::CUDAGuard guard(param.device());
  cuda::launch_sgd({.master = cuda::master_of(param, compute_copy),
                    .grad = grad.data_ptr(),
                    .scalars = scalars.data_ptr<double>(),
                    .count = param.numel(),
                    .lr = static_cast<float>(lr),
                    .weight_decay = static_cast<float>(weight_decay),
                    .width = cuda::flat_width({param, grad, compute_copy.value_or(at::Tensor())})},
                   cuda::dtype_of(grad), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("sgd", &sgd_cuda); }

}  // namespace fastsft
