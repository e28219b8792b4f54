#include "ops/bias/bias.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/bias/bias_launch.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/column_sums.h"

namespace fastsft {
namespace {

void add_bias_cuda(const at::Tensor& x, const at::Tensor& bias) {
  check_add_bias(x, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t width = x.size(1);
  cuda::launch_add_bias(x.data_ptr(), bias.data_ptr(), x.size(0), width,
                        cuda::access_width(width, {x, bias}), cuda::dtype_of(x),
                        c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void bias_backward_cuda(const at::Tensor& grad, const at::Tensor& grad_bias, double beta) {
  check_bias_backward(grad, grad_bias, beta);
  const c10::cuda::CUDAGuard guard(grad.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t width = grad.size(1);
  const at::Tensor parts = at::empty({cuda::kBiasParts, width}, grad_bias.options());
  cuda::launch_bias_parts(grad.data_ptr(), grad.size(0), width, cuda::access_width(width, {grad}),
                          parts.data_ptr<float>(), cuda::dtype_of(grad), stream);
  cuda::launch_column_sums(parts.data_ptr<float>(), cuda::kBiasParts, width,
                           static_cast<float>(beta), grad_bias.data_ptr<float>(), stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("add_bias", &add_bias_cuda);
  m.impl("bias_backward", &bias_backward_cuda);
}

}  // namespace fastsft
