#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/routing/routing.h"
#include "ops/routing/routing_launch.h"

namespace fastsft {
namespace {

cuda::RouteArgs route_args(const at::Tensor& logits, const at::Tensor& chosen_experts,
                           bool normalize) {
  return {.logits = logits.data_ptr(),
          .weights = nullptr,
          .gradient = nullptr,
          .grad_logits = nullptr,
          .chosen_experts = chosen_experts.data_ptr<int>(),
          .tokens = logits.size(0),
          .experts = static_cast<int>(logits.size(1)),
          .chosen = static_cast<int>(chosen_experts.size(1)),
          .normalize = normalize};
}

void route_tokens_cuda(const at::Tensor& logits, const at::Tensor& weights,
                       const at::Tensor& chosen_experts, bool normalize) {
  check_route_tokens(logits, weights, chosen_experts, normalize);
  const c10::cuda::CUDAGuard guard(logits.device());
  cuda::RouteArgs args = route_args(logits, chosen_experts, normalize);
  args.weights = weights.data_ptr();
  cuda::launch_route(args, cuda::dtype_of(logits), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void route_tokens_backward_cuda(const at::Tensor& grad_weights, const at::Tensor& logits,
                                const at::Tensor& chosen_experts, const at::Tensor& grad_logits,
                                bool normalize) {
  check_route_tokens_backward(grad_weights, logits, chosen_experts, grad_logits, normalize);
  const c10::cuda::CUDAGuard guard(logits.device());
  cuda::RouteArgs args = route_args(logits, chosen_experts, normalize);
  args.gradient = grad_weights.data_ptr<float>();
  args.grad_logits = grad_logits.data_ptr();
  cuda::launch_route(args, cuda::dtype_of(logits), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void group_pairs_cuda(const at::Tensor& chosen_experts, const at::Tensor& offsets,
                      const at::Tensor& pairs, const at::Tensor& rows) {
  check_group_pairs(chosen_experts, offsets, pairs, rows);
  const c10::cuda::CUDAGuard guard(chosen_experts.device());
  cuda::launch_group_pairs({.chosen_experts = chosen_experts.data_ptr<int>(),
                            .offsets = offsets.data_ptr<int>(),
                            .pairs = pairs.data_ptr<int>(),
                            .rows = rows.data_ptr<int>(),
                            .count = chosen_experts.numel(),
                            .experts = offsets.size(0) - 1},
                           c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("route_tokens", &route_tokens_cuda);
  m.impl("route_tokens_backward", &route_tokens_backward_cuda);
  m.impl("group_pairs", &group_pairs_cuda);
}

}  // namespace fastsft
