#include "ops/qk_norm/qk_norm.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/cuda/column_sums.h"
#include "ops/qk_norm/qk_norm_launch.h"

namespace fastsft {
namespace {

cuda::QkNormArgs arguments(const at::Tensor& x, const at::Tensor& other, const at::Tensor& weight,
                           const at::Tensor& rstd, int64_t queries, int64_t keys, double offset) {
  const int64_t dim = weight.size(1);
  TORCH_CHECK_VALUE(dim <= cuda::kQkNormMaxDim, "qk_norm: head_dim is ", dim,
                    ", the CUDA kernels take at most ", cuda::kQkNormMaxDim);
  const int access = cuda::access_width(dim, {x, other, weight});
  const bool whole = x.size(1) % access == 0;
  return {.x = x.data_ptr(),
          .weight = weight.data_ptr(),
          .rstd = rstd.data_ptr<float>(),
          .tokens = x.size(0),
          .width = x.size(1),
          .queries = static_cast<int>(queries),
          .keys = static_cast<int>(keys),
          .dim = static_cast<int>(dim),
          .access = whole ? access : 1,
          .offset = static_cast<float>(offset)};
}

void qk_norm_cuda(const at::Tensor& x, const at::Tensor& weight, int64_t num_heads,
                  int64_t num_key_value_heads, double eps, const at::Tensor& out,
                  const at::Tensor& rstd, double offset) {
  check_qk_norm(x, weight, num_heads, num_key_value_heads, eps, out, rstd, offset);
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::launch_qk_norm(arguments(x, out, weight, rstd, num_heads, num_key_value_heads, offset),
                       out.data_ptr(), static_cast<float>(eps), cuda::dtype_of(x),
                       c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void qk_norm_backward_cuda(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& rstd, int64_t num_heads, int64_t num_key_value_heads,
                           const std::optional<at::Tensor>& grad_weight, double beta,
                           double offset) {
  check_qk_norm_backward(grad, x, weight, rstd, num_heads, num_key_value_heads, grad_weight, beta,
                         offset);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t wanted = std::min(x.size(0), cuda::kQkNormMaxParts);
  const int64_t count = (wanted + cuda::kQkNormWarps - 1) / cuda::kQkNormWarps * cuda::kQkNormWarps;
  at::Tensor parts;
  if (grad_weight) parts = at::empty({count, grad_weight->numel()}, grad_weight->options());
  cuda::launch_qk_norm_backward(
      arguments(x, grad, weight, rstd, num_heads, num_key_value_heads, offset), grad.data_ptr(),
      grad_weight ? parts.data_ptr<float>() : nullptr, count, cuda::dtype_of(x), stream);
  if (grad_weight) {
    cuda::launch_column_sums(parts.data_ptr<float>(), count, grad_weight->numel(),
                             static_cast<float>(beta), grad_weight->data_ptr<float>(), stream);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("qk_norm", &qk_norm_cuda);
  m.impl("qk_norm_backward", &qk_norm_backward_cuda);
}

}  // namespace fastsft
