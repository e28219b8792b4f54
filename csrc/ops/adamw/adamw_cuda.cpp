#include "ops/adamw/adamw.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/adamw/adamw_launch.h"
#include "ops/cuda/arguments.h"

namespace fastsft {
namespace {

void adamw_cuda(const at::Tensor& param, const std::optional<at::Tensor>& compute_copy,
                const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                const at::Tensor& scalars, double lr, double beta1, double beta2, double eps,
                double weight_decay, int64_t seed, int64_t first_element) {
  check_adamw(param, compute_copy, grad, exp_avg, exp_avg_sq, scalars, lr, beta1, beta2, eps,
              weight_decay, seed, first_element);
  const c10::cuda::CUDAGuard guard(param.device());
  const at::Tensor copy = compute_copy.value_or(at::Tensor());
  const int width = cuda::flat_width({param, grad, exp_avg, exp_avg_sq, copy});
  cuda::launch_adamw({.master = cuda::master_of(param, compute_copy),
                      .grad = grad.data_ptr(),
                      .exp_avg = exp_avg.data_ptr(),
                      .exp_avg_sq = exp_avg_sq.data_ptr(),
                      .scalars = scalars.data_ptr<double>(),
                      .count = param.numel(),
                      .lr = lr,
                      .beta1 = beta1,
                      .beta2 = beta2,
                      .eps = eps,
                      .weight_decay = weight_decay,
                      .seed = static_cast<uint64_t>(seed),
                      .first_element = first_element,
                      .width = first_element % 4 == 0 ? width : 1},
                     {.grad = cuda::dtype_of(grad), .moments = cuda::dtype_of(exp_avg)},
                     c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("adamw", &adamw_cuda); }

}  // namespace fastsft
