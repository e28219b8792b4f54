#include "ops/rope/rope.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/rope/rope_launch.h"

namespace fastsft {
namespace {

void rope_cuda(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
               const at::Tensor& positions, int64_t num_heads, bool inverse) {
  check_rope(x, cos, sin, positions, num_heads, inverse);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t half = cos.size(1);
  cuda::launch_rope({.x = x.data_ptr(),
                     .cos = cos.data_ptr<float>(),
                     .sin = sin.data_ptr<float>(),
                     .positions = positions.data_ptr<int32_t>(),
                     .rows = x.size(0),
                     .stride = x.stride(0),
                     .num_heads = static_cast<int>(num_heads),
                     .half = static_cast<int>(half),
                     .direction = inverse ? -1.0f : 1.0f,
                     .width = cuda::access_width(half, {x, cos, sin})},
                    cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("rope", &rope_cuda); }

}  // namespace fastsft
