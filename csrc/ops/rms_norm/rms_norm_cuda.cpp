#include "ops/rms_norm/rms_norm.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/cuda/column_sums.h"
#include "ops/fp8/fp8.h"
#include "ops/rms_norm/rms_norm_launch.h"

namespace fastsft {
namespace {

cuda::RmsNormArgs rms_norm_args(const at::Tensor& x, const OptionalTensor& residual,
                                const at::Tensor& weight, double eps, const OptionalTensor& sum,
                                const at::Tensor& out, const at::Tensor& rstd, double offset,
                                bool bytes_fit = true) {
  const int width =
      bytes_fit ? cuda::access_width(x.size(1), {x, weight, out, residual.value_or(at::Tensor()),
                                                 sum.value_or(at::Tensor())})
                : 1;
  return {.x = x.data_ptr(),
          .residual = residual ? residual->data_ptr() : nullptr,
          .weight = weight.data_ptr(),
          .sum = sum ? sum->data_ptr() : nullptr,
          .out = out.data_ptr(),
          .rstd = rstd.data_ptr<float>(),
          .fp8 = {},
          .rows = x.size(0),
          .hidden = x.size(1),
          .eps = static_cast<float>(eps),
          .offset = static_cast<float>(offset),
          .width = width,
          .plan = cuda::plan_row(x.size(1), width)};
}

void rms_norm_cuda(const at::Tensor& x, const OptionalTensor& residual, const at::Tensor& weight,
                   double eps, const OptionalTensor& sum, const at::Tensor& out,
                   const at::Tensor& rstd, double offset) {
  check_rms_norm(x, residual, weight, eps, sum, out, rstd, offset);
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::launch_rms_norm(rms_norm_args(x, residual, weight, eps, sum, out, rstd, offset),
                        cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void rms_norm_fp8_cuda(const at::Tensor& x, const OptionalTensor& residual,
                       const at::Tensor& weight, double eps, const OptionalTensor& sum,
                       const at::Tensor& out, const at::Tensor& rstd, const at::Tensor& values,
                       const at::Tensor& scales, bool power_of_2, bool keep, double offset) {
  check_rms_norm_fp8(x, residual, weight, eps, sum, out, rstd, values, scales, power_of_2, keep,
                     offset);
  cuda::RmsNormArgs args = rms_norm_args(x, residual, weight, eps, sum, out, rstd, offset,
                                         cuda::alignment_of(values) >= 8);
  if (args.plan.packs == 0) {  // a row does not fit into registers
    rms_norm_cuda(x, residual, weight, eps, sum, out, rstd, offset);
    return fp8_quantize(out, /*rowwise=*/true, power_of_2, values, scales);
  }
  const c10::cuda::CUDAGuard guard(x.device());
  args.fp8 = {static_cast<uint8_t*>(values.data_ptr()), scales.data_ptr<float>(), power_of_2};
  if (!keep) args.out = nullptr;
  cuda::launch_rms_norm(args, cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void rms_norm_backward_cuda(const at::Tensor& grad_out, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& rstd,
                            const at::Tensor& grad_x, const OptionalTensor& grad_weight,
                            double beta, bool recompute, double offset) {
  check_rms_norm_backward(grad_out, x, weight, rstd, grad_x, grad_weight, beta, recompute, offset);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t rows = x.size(0), hidden = x.size(1);
  const int width = cuda::access_width(hidden, {x, weight, grad_out, grad_x});
  const cuda::RowPlan plan = cuda::plan_row(hidden, width);
  const int64_t blocks = cuda::blocks_for(rows, plan.rows_per_block, cuda::kRmsNormBlocks);
  at::Tensor parts;
  if (grad_weight) {
    parts = at::empty({blocks * plan.rows_per_block, hidden}, grad_weight->options());
  }
  cuda::launch_rms_norm_backward({.grad_out = grad_out.data_ptr(),
                                  .x = x.data_ptr(),
                                  .weight = weight.data_ptr(),
                                  .rstd = rstd.data_ptr<float>(),
                                  .grad_x = grad_x.data_ptr(),
                                  .parts = grad_weight ? parts.data_ptr<float>() : nullptr,
                                  .rows = rows,
                                  .hidden = hidden,
                                  .blocks = blocks,
                                  .recompute = recompute,
                                  .offset = static_cast<float>(offset),
                                  .width = width,
                                  .plan = plan},
                                 cuda::dtype_of(x), stream);
  if (grad_weight) {
    cuda::launch_column_sums(parts.data_ptr<float>(), parts.size(0), hidden,
                             static_cast<float>(beta), grad_weight->data_ptr<float>(), stream);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("rms_norm", &rms_norm_cuda);
  m.impl("rms_norm_fp8", &rms_norm_fp8_cuda);
  m.impl("rms_norm_backward", &rms_norm_backward_cuda);
}

}  // namespace fastsft
