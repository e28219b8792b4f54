#include <algorithm>

#include "ops/cuda/adamw_constants.cuh"
#include "ops/cuda/adamw_launch.h"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

template <typename Grad, int kWidth>
__device__ void update(const AdamwArgs& args, int64_t at, const AdamwConstants& constants) {
  float param[kWidth], grad[kWidth], exp_avg[kWidth], exp_avg_sq[kWidth];
  load_pack<kWidth>(args.param + at, param);
  load_pack<kWidth>(static_cast<const Grad*>(args.grad) + at, grad);
  load_pack<kWidth>(args.exp_avg + at, exp_avg);
  load_pack<kWidth>(args.exp_avg_sq + at, exp_avg_sq);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    param[i] = adamw_element(param[i], grad[i], exp_avg[i], exp_avg_sq[i], constants);
  }
  store_pack<kWidth>(args.param + at, param);
  store_pack<kWidth>(args.exp_avg + at, exp_avg);
  store_pack<kWidth>(args.exp_avg_sq + at, exp_avg_sq);
  if (args.compute_copy != nullptr)
    store_pack<kWidth>(static_cast<bfloat16*>(args.compute_copy) + at, param);
}

template <typename Grad, int kWidth>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamwArgs args) {
  __shared__ AdamwConstants constants;
  if (threadIdx.x == 0) {
    constants =
        adamw_constants(args.control, args.lr, args.beta1, args.beta2, args.eps, args.weight_decay);
  }
  __syncthreads();
  if (!isfinite(constants.grad_scale)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t accesses = args.count / kWidth;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < accesses; i += step) {
    update<Grad, kWidth>(args, i * kWidth, constants);
  }
  const int64_t tail = accesses * kWidth + first;  // fewer than kWidth elements
  if (tail < args.count) update<Grad, 1>(args, tail, constants);
}

template <typename Grad>
void launch(const AdamwArgs& args, cudaStream_t stream) {
  const int64_t accesses = std::max<int64_t>(1, args.count / args.width);
  const auto blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, (accesses + kThreads - 1) / kThreads));
  if (args.width == 4)
    adamw_kernel<Grad, 4><<<blocks, kThreads, 0, stream>>>(args);
  else
    adamw_kernel<Grad, 1><<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

void launch_adamw(const AdamwArgs& args, Dtype grad_dtype, cudaStream_t stream) {
  if (args.count == 0) return;
  if (grad_dtype == Dtype::kFloat)
    launch<float>(args, stream);
  else
    launch<bfloat16>(args, stream);
}

}  // namespace fastsft::cuda
