#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/norm_squared/norm_squared_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;

// The grid does not depend on the device, so the order of the sum does not either.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) parts_kernel(const T* x, int64_t count, double* parts) {
  const int64_t step = static_cast<int64_t>(kNormSquaredBlocks) * kThreads;
  const int64_t accesses = count / kWidth;
  double sum = 0;
#pragma unroll 4
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < accesses;
       i += step) {
    float values[kWidth];
    load_pack<kWidth>(x + i * kWidth, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum += static_cast<double>(values[k]) * values[k];
  }
  const int64_t tail = accesses * kWidth + threadIdx.x;  // fewer than kWidth elements
  if (blockIdx.x == 0 && tail < count) {
    const double value = to_float(x[tail]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) total_kernel(const double* parts, double* out) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kNormSquaredBlocks; i += kThreads)
    sum += parts[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out += sum;
}

}  // namespace

void launch_norm_squared(const void* x, int64_t count, int width, double* parts, double* out,
                         Dtype dtype, cudaStream_t stream) {
  if (count == 0) return;
  const auto launch = [&]<typename T, int kWidth>() {
    parts_kernel<T, kWidth>
        <<<kNormSquaredBlocks, kThreads, 0, stream>>>(static_cast<const T*>(x), count, parts);
  };
  if (dtype == Dtype::kFloat)
    width == 1 ? launch.operator()<float, 1>() : launch.operator()<float, 4>();
  else
    width == 1 ? launch.operator()<bfloat16, 1>() : launch.operator()<bfloat16, 8>();
  total_kernel<<<1, kThreads, 0, stream>>>(parts, out);
}

}  // namespace fastsft::cuda
