#include "ops/cuda/norm_squared_launch.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;

// The grid does not depend on the device, so the order of the sum does not either.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) parts_kernel(const float* x, int64_t count,
                                                         double* parts) {
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
  if (blockIdx.x == 0 && tail < count) sum += static_cast<double>(x[tail]) * x[tail];
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

void launch_norm_squared(const float* x, int64_t count, int width, double* parts, double* out,
                         cudaStream_t stream) {
  if (count == 0) return;
  if (width == 4)
    parts_kernel<4><<<kNormSquaredBlocks, kThreads, 0, stream>>>(x, count, parts);
  else
    parts_kernel<1><<<kNormSquaredBlocks, kThreads, 0, stream>>>(x, count, parts);
  total_kernel<<<1, kThreads, 0, stream>>>(parts, out);
}

}  // namespace fastsft::cuda
