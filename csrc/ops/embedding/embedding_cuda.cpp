#include "ops/embedding/embedding.h"

#include <ATen/ops/sort.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/embedding/embedding_launch.h"

namespace fastsft {
namespace {

void embedding_cuda(const at::Tensor& weight, const at::Tensor& ids, const at::Tensor& out) {
  check_embedding(weight, ids, out);
  const c10::cuda::CUDAGuard guard(weight.device());
  const int64_t hidden = weight.size(1);
  cuda::launch_embedding({.weight = weight.data_ptr(),
                          .ids = ids.data_ptr<int64_t>(),
                          .out = out.data_ptr(),
                          .tokens = ids.size(0),
                          .vocab = weight.size(0),
                          .hidden = hidden,
                          .width = cuda::access_width(hidden, {weight, out})},
                         cuda::dtype_of(weight), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void embedding_backward_cuda(const at::Tensor& grad_out, const at::Tensor& ids,
                             const at::Tensor& grad_weight) {
  check_embedding_backward(grad_out, ids, grad_weight);
  if (ids.size(0) == 0) return;
  const c10::cuda::CUDAGuard guard(grad_out.device());
  const auto [sorted, order] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const int64_t hidden = grad_weight.size(1);
  cuda::launch_embedding_backward({.grad_out = grad_out.data_ptr(),
                                   .sorted_ids = sorted.data_ptr<int64_t>(),
                                   .order = order.data_ptr<int64_t>(),
                                   .grad_weight = grad_weight.data_ptr<float>(),
                                   .tokens = ids.size(0),
                                   .vocab = grad_weight.size(0),
                                   .hidden = hidden,
                                   .width = cuda::access_width(hidden, {grad_out, grad_weight})},
                                  cuda::dtype_of(grad_out), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("embedding", &embedding_cuda);
  m.impl("embedding_backward", &embedding_backward_cuda);
}

}  // namespace fastsft
