#include <algorithm>

#include "ops/accumulate/accumulate_launch.h"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

template <typename T, int kWidth>
__device__ void add(T* total, const float* x) {
  float sum[kWidth], added[kWidth];
  load_wide<kWidth>(total, sum);
  load_floats<kWidth>(x, added);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum[i] += added[i];
  store_wide<kWidth>(total, sum);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) accumulate_kernel(AccumulateArgs args) {
  T* total = static_cast<T*>(args.total);
  const int64_t accesses = args.count / kWidth;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = first; i < accesses; i += step) {
    add<T, kWidth>(total + i * kWidth, args.x + i * kWidth);
  }
  const int64_t rest = accesses * kWidth + first;  // fewer than kWidth elements
  if (rest < args.count) add<T, 1>(total + rest, args.x + rest);
}

template <typename T>
void launch(const AccumulateArgs& args, cudaStream_t stream) {
  const int64_t accesses = std::max<int64_t>(1, args.count / args.width);
  const auto blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, (accesses + kThreads - 1) / kThreads));
  if (args.width == 8)
    accumulate_kernel<T, 8><<<blocks, kThreads, 0, stream>>>(args);
  else
    accumulate_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

void launch_accumulate(const AccumulateArgs& args, Dtype total, cudaStream_t stream) {
  if (args.count == 0) return;
  if (total == Dtype::kFloat)
    launch<float>(args, stream);
  else
    launch<bfloat16>(args, stream);
}

}  // namespace fastsft::cuda
