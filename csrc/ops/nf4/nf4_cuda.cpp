#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/nf4/nf4.h"
#include "ops/nf4/nf4_launch.h"

namespace fastsft {
namespace {

void nf4_dequantize_cuda(const at::Tensor& packed, const at::Tensor& scales,
                         const at::Tensor& levels, const at::Tensor& out) {
  check_nf4_dequantize(packed, scales, levels, out);
  const c10::cuda::CUDAGuard guard(out.device());
  TORCH_CHECK_VALUE(cuda::alignment_of(out) >= 8, "nf4_dequantize: out is not aligned to 8 bytes");
  cuda::launch_nf4_dequantize({.packed = packed.const_data_ptr<uint8_t>(),
                               .scales = scales.const_data_ptr<float>(),
                               .levels = levels.const_data_ptr<float>(),
                               .out = out.data_ptr(),
                               .blocks = packed.size(0)},
                              cuda::dtype_of(out), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("nf4_dequantize", &nf4_dequantize_cuda); }

}  // namespace fastsft
