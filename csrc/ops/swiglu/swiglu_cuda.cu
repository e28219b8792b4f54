#include <algorithm>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/swiglu/swiglu_launch.h"

namespace fastsft::cuda {
namespace {

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// act(x) = x * sigmoid(argument(x)), and slope is the derivative of argument. This covers GELU's
// tanh form, since 0.5 * (1 + tanh(u)) = sigmoid(2u).
constexpr float kLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
constexpr float kCubic = kLinear * 0.044715f;
template <bool kGelu>
__device__ float argument(float x) {
  if constexpr (!kGelu) return x;
  return x * (kLinear + kCubic * x * x);
}
template <bool kGelu>
__device__ float slope(float x) {
  if constexpr (!kGelu) return 1.0f;
  return kLinear + 3.0f * kCubic * x * x;
}

// Computes one row per block.
template <bool kGelu, typename T, int kWidth>
__global__ void forward_kernel(SwigluArgs args) {
  const T* gate = static_cast<const T*>(args.gate_up) + 2 * args.width * blockIdx.x;
  T* out = static_cast<T*>(args.out) + args.width * blockIdx.x;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < args.width; j += step) {
    float g[kWidth], up[kWidth];
    load_pack<kWidth>(gate + j, g);
    load_pack<kWidth>(gate + args.width + j, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[i] = g[i] * sigmoid(argument<kGelu>(g[i])) * up[i];
    store_pack<kWidth>(out + j, g);
  }
}

// Results may overwrite gate_up and grad_out, because each thread reads its elements before it
// writes them.
template <bool kGelu, typename T, int kWidth, bool kRemake>
__global__ void backward_kernel(SwigluArgs args) {
  const T* gate = static_cast<const T*>(args.gate_up) + 2 * args.width * blockIdx.x;
  T* grad_out = static_cast<T*>(args.grad_out) + args.width * blockIdx.x;
  T* grad = static_cast<T*>(args.out) + 2 * args.width * blockIdx.x;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < args.width; j += step) {
    float gates[kWidth], ups[kWidth], grads[kWidth], activations[kWidth];
    load_pack<kWidth>(gate + j, gates);
    load_pack<kWidth>(gate + args.width + j, ups);
    load_pack<kWidth>(grad_out + j, grads);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = grads[i], s = sigmoid(argument<kGelu>(gates[i]));
      activations[i] = gates[i] * s * ups[i];
      grads[i] = g * gates[i] * s;
      gates[i] = g * ups[i] * s * (1.0f + gates[i] * (1.0f - s) * slope<kGelu>(gates[i]));
    }
    store_pack<kWidth>(grad + j, gates);
    store_pack<kWidth>(grad + args.width + j, grads);
    if constexpr (kRemake) store_pack<kWidth>(grad_out + j, activations);
  }
}

template <bool kGelu>
void launch(const SwigluArgs& args, Dtype dtype, cudaStream_t stream) {
  const int64_t accesses = args.width / args.access;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(256, (accesses + 31) / 32 * 32));
  const auto blocks = static_cast<unsigned>(args.rows);
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    if (args.grad_out == nullptr)
      forward_kernel<kGelu, T, kWidth><<<blocks, threads, 0, stream>>>(args);
    else if (args.recompute)
      backward_kernel<kGelu, T, kWidth, true><<<blocks, threads, 0, stream>>>(args);
    else
      backward_kernel<kGelu, T, kWidth, false><<<blocks, threads, 0, stream>>>(args);
  });
}

}  // namespace

void launch_swiglu(const SwigluArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return;
  (args.gelu ? launch<true> : launch<false>)(args, dtype, stream);
}

}  // namespace fastsft::cuda
