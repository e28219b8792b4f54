#include <algorithm>
#include <cmath>

#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/gradient/gradient_launch.h"
#include "ops/gradient/step_scalars.h"

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
  const int64_t rest = accesses * kWidth + first;  // the rest, fewer than kWidth
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

// Computes partial sums. The grid does not depend on the device, so the summation order does not
// either.
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
  const int64_t tail = accesses * kWidth + threadIdx.x;  // the rest, fewer than kWidth
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

__global__ void grad_scale_kernel(double* scalars, double max_norm) {
  const double norm = sqrt(scalars[kStepNormSquared]);
  const bool good = isfinite(scalars[kStepLoss]) && isfinite(norm);
  float scale = 1.0f;
  if (max_norm > 0) scale = fminf(1.0f, static_cast<float>(max_norm / (norm + 1e-6)));
  scalars[kStepGradScale] = good ? static_cast<double>(scale) : nan("");
  if (good) scalars[kStepNumber] += 1;
}

}  // namespace

void launch_accumulate(const AccumulateArgs& args, Dtype total, cudaStream_t stream) {
  if (args.count == 0) return;
  if (total == Dtype::kFloat)
    launch<float>(args, stream);
  else
    launch<bfloat16>(args, stream);
}

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

void launch_compute_grad_scale(double* scalars, double max_norm, cudaStream_t stream) {
  grad_scale_kernel<<<1, 1, 0, stream>>>(scalars, max_norm);
}

}  // namespace fastsft::cuda
