#include "ops/adamw8bit/adamw8bit.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/adamw8bit/adamw8bit_launch.h"
#include "ops/cuda/arguments.h"

namespace fastsft {
namespace {

cuda::Adamw8bitMomentArgs moments_of(const at::Tensor& grad, const at::Tensor& state1,
                                     const at::Tensor& state2, const at::Tensor& absmax1,
                                     const at::Tensor& absmax2, const at::Tensor& levels,
                                     const at::Tensor& scalars, double beta1, double beta2) {
  return {.grad = grad.data_ptr(),
          .dtype = cuda::dtype_of(grad),
          .state1 = state1.data_ptr<uint8_t>(),
          .state2 = state2.data_ptr<uint8_t>(),
          .absmax1 = absmax1.data_ptr<float>(),
          .absmax2 = absmax2.data_ptr<float>(),
          .levels = levels.data_ptr<float>(),
          .scalars = scalars.data_ptr<double>(),
          .count = grad.numel(),
          .beta1 = beta1,
          .beta2 = beta2};
}

void adamw8bit_cuda(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                    const at::Tensor& grad, const at::Tensor& state1, const at::Tensor& state2,
                    const at::Tensor& absmax1, const at::Tensor& absmax2, const at::Tensor& levels,
                    const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
                    double weight_decay, int64_t first, const std::optional<at::Tensor>& first_edge,
                    const std::optional<at::Tensor>& last_edge) {
  check_adamw8bit(param, compute_copy, grad, state1, state2, absmax1, absmax2, levels, scalars, lr,
                  beta1, beta2, eps, weight_decay, first, first_edge, last_edge);
  const c10::cuda::CUDAGuard guard(param.device());
  cuda::launch_adamw8bit(
      {.moments = moments_of(grad, state1, state2, absmax1, absmax2, levels, scalars, beta1, beta2),
       .master = cuda::master_of(param, compute_copy),
       .lr = lr,
       .eps = eps,
       .weight_decay = weight_decay,
       .first = first,
       .first_edge = first_edge ? first_edge->data_ptr<float>() : nullptr,
       .last_edge = last_edge ? last_edge->data_ptr<float>() : nullptr},
      c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void adamw8bit_maxima_cuda(const at::Tensor& grad, const at::Tensor& state1,
                           const at::Tensor& state2, const at::Tensor& absmax1,
                           const at::Tensor& absmax2, const at::Tensor& levels,
                           const at::Tensor& scalars, double beta1, double beta2,
                           const at::Tensor& maxima) {
  check_adamw8bit_maxima(grad, state1, state2, absmax1, absmax2, levels, scalars, beta1, beta2,
                         maxima);
  const c10::cuda::CUDAGuard guard(grad.device());
  cuda::launch_adamw8bit_maxima(
      moments_of(grad, state1, state2, absmax1, absmax2, levels, scalars, beta1, beta2),
      maxima.data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("adamw8bit", &adamw8bit_cuda);
  m.impl("adamw8bit_maxima", &adamw8bit_maxima_cuda);
}

}  // namespace fastsft
