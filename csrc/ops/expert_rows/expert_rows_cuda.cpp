#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/expert_rows/expert_rows.h"
#include "ops/expert_rows/expert_rows_launch.h"

namespace fastsft {
namespace {

void gather_rows_cuda(const at::Tensor& x, const at::Tensor& pairs, const at::Tensor& out) {
  check_gather_rows(x, pairs, out);
  if (out.size(0) == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::launch_gather_rows({.x = x.data_ptr(),
                            .pairs = pairs.data_ptr<int>(),
                            .out = out.data_ptr(),
                            .rows = out.size(0),
                            .chosen = out.size(0) / x.size(0),
                            .width = x.size(1),
                            .access = cuda::access_width(x.size(1), {x, out})},
                           cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void combine_rows_cuda(const at::Tensor& grouped, const at::Tensor& rows,
                       const std::optional<at::Tensor>& weights, const at::Tensor& addend,
                       const at::Tensor& out) {
  check_combine_rows(grouped, rows, weights, addend, out);
  const c10::cuda::CUDAGuard guard(grouped.device());
  cuda::launch_combine_rows({.grouped = grouped.data_ptr(),
                             .rows = rows.data_ptr<int>(),
                             .weights = weights ? weights->data_ptr() : nullptr,
                             .addend = addend.data_ptr(),
                             .out = out.data_ptr(),
                             .tokens = out.size(0),
                             .chosen = rows.size(1),
                             .width = out.size(1),
                             .access = cuda::access_width(out.size(1), {grouped, addend, out})},
                            cuda::dtype_of(grouped), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void expert_swiglu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& gate_up,
                                 const at::Tensor& weights, const at::Tensor& pairs,
                                 const at::Tensor& grad_weights) {
  check_expert_swiglu_backward(grad_out, gate_up, weights, pairs, grad_weights);
  const c10::cuda::CUDAGuard guard(grad_out.device());
  const int64_t width = grad_out.size(1);
  cuda::launch_expert_swiglu_backward({.grad_out = grad_out.data_ptr(),
                                       .gate_up = gate_up.data_ptr(),
                                       .weights = weights.data_ptr(),
                                       .pairs = pairs.data_ptr<int>(),
                                       .grad_weights = grad_weights.data_ptr<float>(),
                                       .rows = grad_out.size(0),
                                       .width = width,
                                       .access = cuda::access_width(width, {grad_out, gate_up})},
                                      cuda::dtype_of(grad_out), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("gather_rows", &gather_rows_cuda);
  m.impl("combine_rows", &combine_rows_cuda);
  m.impl("expert_swiglu_backward", &expert_swiglu_backward_cuda);
}

}  // namespace fastsft
