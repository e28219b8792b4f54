#include "ops/grouped_gemm/grouped_gemm.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/grouped_gemm/grouped_gemm_launch.h"

namespace fastsft {
namespace {

// Returns the elements per memory access of two matrices with different rows.
int access_of(const at::Tensor& one, const at::Tensor& two) {
  return std::min(cuda::access_width(one.size(-1), {one}), cuda::access_width(two.size(-1), {two}));
}

void grouped_gemm_cuda(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets,
                       const at::Tensor& out, bool transpose) {
  check_grouped_gemm(x, weights, offsets, out, transpose);
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::launch_grouped_gemm({.x = x.data_ptr(),
                             .weights = weights.data_ptr(),
                             .out = out.data_ptr(),
                             .offsets = offsets.data_ptr<int>(),
                             .experts = weights.size(0),
                             .rows = x.size(0),
                             .inputs = x.size(1),
                             .outputs = out.size(1),
                             .transpose = transpose,
                             .access = access_of(x, weights)},
                            cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void grouped_weight_gradient_cuda(const at::Tensor& grad_y, const at::Tensor& x,
                                  const at::Tensor& offsets, const at::Tensor& grad_weights,
                                  double beta) {
  check_grouped_weight_gradient(grad_y, x, offsets, grad_weights, beta);
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::launch_grouped_gradient({.grad_y = grad_y.data_ptr(),
                                 .x = x.data_ptr(),
                                 .grad_weights = grad_weights.data_ptr(),
                                 .offsets = offsets.data_ptr<int>(),
                                 .experts = grad_weights.size(0),
                                 .inputs = x.size(1),
                                 .outputs = grad_y.size(1),
                                 .beta = static_cast<float>(beta),
                                 .access = access_of(grad_y, x)},
                                cuda::dtype_of(x), grad_weights.scalar_type() == at::kBFloat16,
                                c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("grouped_gemm", &grouped_gemm_cuda);
  m.impl("grouped_weight_gradient", &grouped_weight_gradient_cuda);
}

}  // namespace fastsft
