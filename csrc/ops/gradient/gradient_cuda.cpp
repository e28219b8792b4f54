#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/gradient/gradient.h"
#include "ops/gradient/gradient_launch.h"

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

void norm_squared_cuda(const at::Tensor& x, const at::Tensor& out) {
  check_norm_squared(x, out);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor parts = at::empty({cuda::kNormSquaredBlocks}, out.options());
  // The kernel handles a tail of less than one access separately.
  const int width = cuda::alignment_of(x) >= 16 ? 16 / static_cast<int>(x.element_size()) : 1;
  cuda::launch_norm_squared(x.data_ptr(), x.numel(), width, parts.data_ptr<double>(),
                            out.data_ptr<double>(), cuda::dtype_of(x),
                            c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void compute_grad_scale_cuda(const at::Tensor& scalars, double max_norm) {
  check_compute_grad_scale(scalars, max_norm);
  const c10::cuda::CUDAGuard guard(scalars.device());
  cuda::launch_compute_grad_scale(scalars.data_ptr<double>(), max_norm,
                                  c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("accumulate", &accumulate_cuda);
  m.impl("norm_squared", &norm_squared_cuda);
  m.impl("compute_grad_scale", &compute_grad_scale_cuda);
}

}  // namespace fastsft
