#include "ops/norm_squared/norm_squared.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/norm_squared/norm_squared_launch.h"

namespace fastsft {
namespace {

void norm_squared_cuda(const at::Tensor& x, const at::Tensor& out) {
  check_norm_squared(x, out);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor parts = at::empty({cuda::kNormSquaredBlocks}, out.options());
  // A tail of less than one access is read apart.
  const int width = cuda::alignment_of(x) >= 16 ? 16 / static_cast<int>(x.element_size()) : 1;
  cuda::launch_norm_squared(x.data_ptr(), x.numel(), width, parts.data_ptr<double>(),
                            out.data_ptr<double>(), cuda::dtype_of(x),
                            c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("norm_squared", &norm_squared_cuda); }

}  // namespace fastsft
