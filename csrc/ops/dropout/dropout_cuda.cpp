#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/arguments.h"
#include "ops/dropout/dropout.h"
#include "ops/dropout/dropout_launch.h"

namespace fastsft {
namespace {

void dropout_cuda(const at::Tensor& x, const at::Tensor& keys, double p, int64_t seed,
                  int64_t stream, const at::Tensor& out, double beta) {
  check_dropout(x, keys, p, seed, stream, out, beta);
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t width = x.size(1);
  cuda::launch_dropout({.x = x.data_ptr(),
                        .keys = keys.data_ptr<int32_t>(),
                        .out = out.data_ptr(),
                        .rows = x.size(0),
                        .width = width,
                        .seed = static_cast<uint64_t>(seed),
                        .stream = static_cast<uint32_t>(stream),
                        .first_kept = first_kept_word(p),
                        .scale = static_cast<float>(1.0 / (1.0 - p)),
                        .beta = static_cast<float>(beta),
                        .access = cuda::access_width(width, {x, out})},
                       cuda::dtype_of(x), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("dropout", &dropout_cuda); }

}  // namespace fastsft
