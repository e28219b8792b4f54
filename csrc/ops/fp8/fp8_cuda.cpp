#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/fp8/fp8.h"
#include "ops/fp8/fp8_launch.h"

namespace fastsft {
namespace {

// Returns memory for the parts of amax: one for each 4,096 elements, up to kFp8Parts.
at::Tensor fp8_parts(const at::Tensor& x) {
  constexpr int64_t kElements = 4096;
  const int64_t wanted = (x.numel() + kElements - 1) / kElements;
  return at::empty({std::clamp<int64_t>(wanted, 1, cuda::kFp8Parts)},
                   x.options().dtype(at::kFloat));
}

// Returns memory for the parts of each column's amax: one for each 64 rows, up to kFp8Slices.
at::Tensor fp8_column_parts(const at::Tensor& x) {
  const int64_t slices = std::clamp<int64_t>((x.size(0) + 63) / 64, 1, cuda::kFp8Slices);
  return at::empty({slices, x.size(1)}, x.options().dtype(at::kFloat));
}

cuda::Fp8Args fp8_args(const at::Tensor& x, bool power_of_2, const at::Tensor& out,
                       const at::Tensor& scales, const at::Tensor& parts) {
  return {.x = x.data_ptr(),
          .out = static_cast<uint8_t*>(out.data_ptr()),
          .scales = scales.data_ptr<float>(),
          .parts = parts.defined() ? parts.data_ptr<float>() : nullptr,
          .rows = x.size(0),
          .columns = x.size(1),
          .width = out.size(1),
          .parts_count = parts.defined() ? parts.size(0) : 0,
          .slices = 0,
          .e5m2 = out.scalar_type() == at::kFloat8_e5m2,
          .power_of_2 = power_of_2,
          .access = cuda::access_width(x.size(1), {x}),
          .words = false};
}

void fp8_quantize_cuda(const at::Tensor& x, bool rowwise, bool power_of_2, const at::Tensor& out,
                       const at::Tensor& scales) {
  check_fp8_quantize(x, rowwise, power_of_2, out, scales);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor parts = rowwise ? at::Tensor() : fp8_parts(x);
  cuda::Fp8Args args = fp8_args(x, power_of_2, out, scales, parts);
  if (cuda::alignment_of(out) < 8) args.access = 1;  // a pack of bytes has up to eight
  cuda::launch_fp8_quantize(args, cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void fp8_quantize_transposed_cuda(const at::Tensor& x, bool rowwise, bool power_of_2,
                                  const at::Tensor& out, const at::Tensor& scales) {
  check_fp8_quantize_transposed(x, rowwise, power_of_2, out, scales);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor parts = rowwise ? fp8_column_parts(x) : fp8_parts(x);
  cuda::Fp8Args args = fp8_args(x, power_of_2, out, scales, parts);
  args.slices = rowwise ? parts.size(0) : 0;
  args.words = args.width % 4 == 0 && cuda::alignment_of(out) >= 4;
  cuda::launch_fp8_quantize_transposed(args, cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("fp8_quantize", &fp8_quantize_cuda);
  m.impl("fp8_quantize_transposed", &fp8_quantize_transposed_cuda);
}

}  // namespace fastsft
