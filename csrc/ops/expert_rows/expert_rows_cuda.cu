#include <algorithm>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/expert_rows/expert_rows_launch.h"

namespace fastsft::cuda {
namespace {

// Copies one row per block.
template <typename T, int kWidth>
__global__ void gather_rows_kernel(GatherRowsArgs args) {
  using Access = Pack<T, kWidth>;
  const int64_t token = args.pairs[blockIdx.x] / args.chosen, accesses = args.width / kWidth;
  const auto* from =
      reinterpret_cast<const Access*>(static_cast<const T*>(args.x) + token * args.width);
  auto* to = reinterpret_cast<Access*>(static_cast<T*>(args.out) + blockIdx.x * args.width);
  for (int64_t j = threadIdx.x; j < accesses; j += blockDim.x) to[j] = from[j];
}

// Adds one token's rows per block, in the order of its chosen experts.
template <typename T, int kWidth>
__global__ void combine_rows_kernel(CombineRowsArgs args) {
  const int64_t token = blockIdx.x, step = static_cast<int64_t>(blockDim.x) * kWidth;
  const T* grouped = static_cast<const T*>(args.grouped);
  const T* weights = static_cast<const T*>(args.weights);
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < args.width; j += step) {
    float sum[kWidth] = {}, values[kWidth];
    for (int64_t i = token * args.chosen; i < (token + 1) * args.chosen; ++i) {
      const float weight = weights == nullptr ? 1.0f : to_float(weights[i]);
      load_pack<kWidth>(grouped + args.rows[i] * args.width + j, values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum[k] += weight * values[k];
    }
    load_pack<kWidth>(static_cast<const T*>(args.addend) + token * args.width + j, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum[k] += values[k];
    store_pack<kWidth>(static_cast<T*>(args.out) + token * args.width + j, sum);
  }
}

// Computes one row per block. Each thread reads its elements before it overwrites them.
template <typename T, int kWidth>
__global__ void expert_swiglu_kernel(ExpertSwigluArgs args) {
  T* gate = static_cast<T*>(args.gate_up) + 2 * args.width * blockIdx.x;
  T* grad_out = static_cast<T*>(args.grad_out) + args.width * blockIdx.x;
  const int pair = args.pairs[blockIdx.x];
  const float weight = to_float(static_cast<const T*>(args.weights)[pair]);
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  float dot = 0;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < args.width; j += step) {
    float gates[kWidth], ups[kWidth], grads[kWidth];
    load_pack<kWidth>(gate + j, gates);
    load_pack<kWidth>(gate + args.width + j, ups);
    load_pack<kWidth>(grad_out + j, grads);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float grad = weight * grads[i], s = 1.0f / (1.0f + expf(-gates[i]));
      const float activated = gates[i] * s * ups[i];
      dot += grads[i] * activated;
      grads[i] = weight * activated;
      const float grad_up = grad * gates[i] * s;
      gates[i] = grad * ups[i] * s * (1.0f + gates[i] * (1.0f - s));
      ups[i] = grad_up;
    }
    store_pack<kWidth>(gate + j, gates);
    store_pack<kWidth>(gate + args.width + j, ups);
    store_pack<kWidth>(grad_out + j, grads);
  }
  const float total = block_sum(dot);
  if (threadIdx.x == 0) args.grad_weights[pair] = total;
}

// Returns the threads of a block for rows of `accesses` accesses: whole warps.
unsigned threads_for(int64_t accesses) {
  return static_cast<unsigned>(std::clamp<int64_t>((accesses + 31) / 32 * 32, 32, 256));
}

}  // namespace

void launch_gather_rows(const GatherRowsArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  const unsigned threads = threads_for(args.width / args.access);
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    gather_rows_kernel<T, kWidth><<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args);
  });
}

void launch_combine_rows(const CombineRowsArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.tokens == 0) return;
  const unsigned threads = threads_for(args.width / args.access);
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    combine_rows_kernel<T, kWidth>
        <<<static_cast<unsigned>(args.tokens), threads, 0, stream>>>(args);
  });
}

void launch_expert_swiglu_backward(const ExpertSwigluArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  const unsigned threads = threads_for(args.width / args.access);
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    expert_swiglu_kernel<T, kWidth><<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args);
  });
}

}  // namespace fastsft::cuda
