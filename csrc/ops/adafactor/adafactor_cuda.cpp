#include "ops/adafactor/adafactor.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/adafactor/adafactor_launch.h"
#include "ops/cuda/arguments.h"

namespace fastsft {
namespace {

float* data_of(const OptionalTensor& tensor) {
  return tensor ? tensor->data_ptr<float>() : nullptr;
}

cuda::AdafactorPart part_of(const at::Tensor& grad, const at::Tensor& scalars, int64_t first,
                            int64_t rows, int64_t columns) {
  return {.grad = grad.data_ptr(),
          .dtype = cuda::dtype_of(grad),
          .scalars = scalars.data_ptr<double>(),
          .first = first,
          .count = grad.numel(),
          .rows = rows,
          .columns = columns};
}

void adafactor_sums_cuda(const at::Tensor& grad, const at::Tensor& scalars,
                         const OptionalTensor& row_sums, const at::Tensor& column_sums,
                         int64_t first, int64_t rows, int64_t columns) {
  check_adafactor_sums(grad, scalars, row_sums, column_sums, first, rows, columns);
  const c10::cuda::CUDAGuard guard(grad.device());
  const int64_t room = cuda::adafactor_chunks(rows) * columns;
  const at::Tensor parts = at::empty({room}, column_sums.options());
  cuda::launch_adafactor_sums(part_of(grad, scalars, first, rows, columns), data_of(row_sums),
                              column_sums.data_ptr<float>(), parts.data_ptr<float>(),
                              c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void adafactor_moments_cuda(const OptionalTensor& row_sums, const at::Tensor& column_sums,
                            const OptionalTensor& row, const at::Tensor& column,
                            const at::Tensor& scalars, int64_t rows, int64_t columns) {
  check_adafactor_moments(row_sums, column_sums, row, column, scalars, rows, columns);
  const c10::cuda::CUDAGuard guard(column.device());
  cuda::launch_adafactor_moments({.row_sums = data_of(row_sums),
                                  .column_sums = column_sums.data_ptr<float>(),
                                  .row = data_of(row),
                                  .column = column.data_ptr<float>(),
                                  .scalars = scalars.data_ptr<double>(),
                                  .matrices = column.numel() / columns,
                                  .rows = rows,
                                  .columns = columns},
                                 c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void adafactor_norm_cuda(const at::Tensor& grad, const at::Tensor& scalars,
                         const OptionalTensor& row_factors, const at::Tensor& column_factors,
                         const at::Tensor& out, int64_t first, int64_t rows, int64_t columns) {
  check_adafactor_norm(grad, scalars, row_factors, column_factors, out, first, rows, columns);
  const c10::cuda::CUDAGuard guard(grad.device());
  const at::Tensor parts = at::empty({cuda::kAdafactorBlocks}, out.options());
  cuda::launch_adafactor_norm(part_of(grad, scalars, first, rows, columns), data_of(row_factors),
                              column_factors.data_ptr<float>(), parts.data_ptr<double>(),
                              out.data_ptr<double>(), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void adafactor_update_cuda(const at::Tensor& param, const OptionalTensor& compute_copy,
                           const at::Tensor& grad, const at::Tensor& scalars,
                           const OptionalTensor& row_factors, const at::Tensor& column_factors,
                           const at::Tensor& norm, int64_t size, double lr, double weight_decay,
                           int64_t first, int64_t rows, int64_t columns) {
  check_adafactor_update(param, compute_copy, grad, scalars, row_factors, column_factors, norm,
                         size, lr, weight_decay, first, rows, columns);
  const c10::cuda::CUDAGuard guard(param.device());
  cuda::launch_adafactor_update({.part = part_of(grad, scalars, first, rows, columns),
                                 .master = cuda::master_of(param, compute_copy),
                                 .row_factors = data_of(row_factors),
                                 .column_factors = column_factors.data_ptr<float>(),
                                 .norm = norm.data_ptr<double>(),
                                 .size = size,
                                 .lr = lr,
                                 .weight_decay = weight_decay},
                                c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("adafactor_sums", &adafactor_sums_cuda);
  m.impl("adafactor_moments", &adafactor_moments_cuda);
  m.impl("adafactor_norm", &adafactor_norm_cuda);
  m.impl("adafactor_update", &adafactor_update_cuda);
}

}  // namespace fastsft
