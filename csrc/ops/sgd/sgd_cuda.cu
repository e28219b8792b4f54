#include <algorithm>

#include "ops/gradient/step_scalars.h"
#include "ops/master/master_access.cuh"
#include "ops/sgd/sgd_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

template <typename Master, typename Grad, int kWidth>
__device__ void update(const SgdArgs& args, int64_t at, float scale) {
  float param[kWidth], grad[kWidth];
  const MasterPlace<Master> master(args.master, at);
  master.template load<kWidth>(param);
  load_wide<kWidth>(static_cast<const Grad*>(args.grad) + at, grad);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    param[i] = param[i] - args.lr * (grad[i] * scale + args.weight_decay * param[i]);
  }
  master.template store<kWidth>(param);
}

template <typename Master, typename Grad, int kWidth>
__global__ void __launch_bounds__(kThreads) sgd_kernel(SgdArgs args) {
  const float scale = static_cast<float>(args.scalars[kStepGradScale]);
  if (!isfinite(scale)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t accesses = args.count / kWidth;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < accesses; i += step) {
    update<Master, Grad, kWidth>(args, i * kWidth, scale);
  }
  const int64_t rest = accesses * kWidth + first;  // the rest, fewer than kWidth
  if (rest < args.count) update<Master, Grad, 1>(args, rest, scale);
}

template <typename Master, typename Grad>
void launch(const SgdArgs& args, cudaStream_t stream) {
  const int64_t accesses = std::max<int64_t>(1, args.count / args.width);
  const auto blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, (accesses + kThreads - 1) / kThreads));
  if (args.width == 8)
    sgd_kernel<Master, Grad, 8><<<blocks, kThreads, 0, stream>>>(args);
  else
    sgd_kernel<Master, Grad, 1><<<blocks, kThreads, 0, stream>>>(args);
}

template <typename Master>
void launch(const SgdArgs& args, Dtype grad, cudaStream_t stream) {
  if (grad == Dtype::kFloat)
    launch<Master, float>(args, stream);
  else
    launch<Master, bfloat16>(args, stream);
}

}  // namespace

void launch_sgd(const SgdArgs& args, Dtype grad, cudaStream_t stream) {
  if (args.count == 0) return;
  with_master_value(args.master, [&](auto value) { launch<decltype(value)>(args, grad, stream); });
}

}  // namespace fastsft::cuda
