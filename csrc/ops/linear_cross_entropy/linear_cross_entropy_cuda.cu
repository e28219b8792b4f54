#include <cfloat>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/linear_cross_entropy/cross_entropy_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSumThreads = 1024;

// A running maximum and the sum of exp(x - highest). `highest` starts finite, so that threads
// without elements add zero instead of NaN. A NaN or infinite logit makes the sum NaN.
struct Softmax {
  float highest = -FLT_MAX, sum = 0;

  __device__ void add(float x) {
    if (x > highest) {
      sum *= expf(highest - x);
      highest = x;
    }
    sum += expf(x - highest);
  }
  __device__ void add(const Softmax& other) {
    const float top = fmaxf(highest, other.highest);
    sum = sum * expf(highest - top) + other.sum * expf(other.highest - top);
    highest = top;
  }
};

// Combines the softmax of all threads in a fixed order; every thread gets the result.
__device__ Softmax combine(Softmax value) {
  __shared__ float highest[kThreads / 32], sum[kThreads / 32];  // per warp
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    Softmax other;
    other.highest = __shfl_xor_sync(kAllLanes, value.highest, offset);
    other.sum = __shfl_xor_sync(kAllLanes, value.sum, offset);
    value.add(other);
  }
  if (threadIdx.x % 32 == 0) {
    highest[threadIdx.x / 32] = value.highest;
    sum[threadIdx.x / 32] = value.sum;
  }
  __syncthreads();
  Softmax total;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    Softmax other;
    other.highest = highest[warp];
    other.sum = sum[warp];
    total.add(other);
  }
  return total;
}

struct RowSums {
  Softmax softmax;
  float plain = 0;  // sum of the logits, for label smoothing
};

// Returns softcap * tanh(x / softcap).
template <bool kCapped>
__device__ float capped(float x, float softcap) {
  if constexpr (!kCapped) return x;
  return softcap * tanhf(x / softcap);
}

// Elements in an access of 16 bytes.
template <typename T>
constexpr int kWidth = 16 / sizeof(T);

template <bool kCapped, typename T>
__device__ RowSums row_sums(const T* row, int64_t vocab, float softcap) {
  RowSums sums;
  const int64_t packed = vocab / kWidth<T> * kWidth<T>;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth<T>; j < packed;
       j += kThreads * kWidth<T>) {
    float x[kWidth<T>], top = -FLT_MAX;
    load_pack<kWidth<T>>(row + j, x);
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      x[i] = capped<kCapped>(x[i], softcap);
      top = fmaxf(top, x[i]);
    }
    if (top > sums.softmax.highest) {  // one rescaling for an access
      sums.softmax.sum *= expf(sums.softmax.highest - top);
      sums.softmax.highest = top;
    }
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      sums.softmax.sum += expf(x[i] - sums.softmax.highest);
      sums.plain += x[i];
    }
  }
  if (packed + threadIdx.x < vocab) {
    const float x = capped<kCapped>(to_float(row[packed + threadIdx.x]), softcap);
    sums.softmax.add(x);
    sums.plain += x;
  }
  return sums;
}

// The gradient of a logit: scale * exp(x - highest) - shift, minus `at_target` at the target. With
// a softcap, x is the capped logit, and the gradient is multiplied by the cap's derivative.
template <bool kCapped>
struct Gradient {
  float highest, scale, shift, at_target, softcap;
  int64_t target;

  __device__ float of(float logit, int64_t column) const {
    const float x = capped<kCapped>(logit, softcap);
    const float grad = scale * expf(x - highest) - shift - (column == target ? at_target : 0.0f);
    if constexpr (!kCapped) return grad;
    const float t = x / softcap;
    return grad * (1.0f - t * t);
  }
};

template <bool kCapped, typename T>
__device__ void write_gradient(T* row, int64_t vocab, const Gradient<kCapped>& g) {
  const int64_t packed = vocab / kWidth<T> * kWidth<T>;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth<T>; j < packed;
       j += kThreads * kWidth<T>) {
    float x[kWidth<T>];
    load_pack<kWidth<T>>(row + j, x);
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) x[i] = g.of(x[i], j + i);
    store_pack<kWidth<T>>(row + j, x);
  }
  const int64_t tail = packed + threadIdx.x;
  if (tail < vocab) store(&row[tail], g.of(to_float(row[tail]), tail));
}

// Computes one row per block: one pass for maximum and sum, one pass for the gradient.
template <typename T, bool kCapped>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyArgs args) {
  T* row = static_cast<T*>(args.logits) + blockIdx.x * args.stride;
  const int64_t target = args.targets[blockIdx.x];
  if (target < 0 || target >= args.vocab) __trap();
  const float at_target = capped<kCapped>(to_float(row[target]), args.softcap),
              weight = args.weights[blockIdx.x];
  const RowSums sums = row_sums<kCapped>(row, args.vocab, args.softcap);
  const float vocab = static_cast<float>(args.vocab);
  const float mean = block_sum(sums.plain) / vocab;
  const Softmax all = combine(sums.softmax);  // synchronises, so all threads have read at_target
  if (threadIdx.x == 0) {
    const double log_sum = all.highest + log(static_cast<double>(all.sum));
    args.losses[blockIdx.x] = weight * ((1.0 - args.smoothing) * (log_sum - at_target) +
                                        args.smoothing * (log_sum - mean));
  }
  if (!args.gradient) return;
  write_gradient(row, args.vocab,
                 Gradient<kCapped>{.highest = all.highest,
                                   .scale = weight / all.sum,
                                   .shift = weight * args.smoothing / vocab,
                                   .at_target = weight * (1.0f - args.smoothing),
                                   .softcap = args.softcap,
                                   .target = target});
}

__global__ void __launch_bounds__(kSumThreads)
    add_losses_kernel(const double* losses, int64_t count, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += losses[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace

void launch_cross_entropy(const CrossEntropyArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  const auto blocks = static_cast<unsigned>(args.rows);
  dispatch(dtype, [&]<typename T>() {
    if (args.softcap > 0)
      cross_entropy_kernel<T, true><<<blocks, kThreads, 0, stream>>>(args);
    else
      cross_entropy_kernel<T, false><<<blocks, kThreads, 0, stream>>>(args);
  });
}

void launch_add_losses(const double* losses, int64_t count, double* total, cudaStream_t stream) {
  add_losses_kernel<<<1, kSumThreads, 0, stream>>>(losses, count, total);
}

}  // namespace fastsft::cuda
