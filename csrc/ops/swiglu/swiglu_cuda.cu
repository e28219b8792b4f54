#include <algorithm>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/fp8/fp8_cast.cuh"
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

// Computes one access of a row.
template <bool kGelu, int kWidth, typename T>
__device__ void activate(const SwigluArgs& args, const T* gate, float* g) {
  float up[kWidth];
  load_pack<kWidth>(gate, g);
  load_pack<kWidth>(gate + args.width, up);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) g[i] = g[i] * sigmoid(argument<kGelu>(g[i])) * up[i];
}

// Computes one row per block.
template <bool kGelu, typename T, int kWidth>
__global__ void forward_kernel(SwigluArgs args) {
  const T* gate = static_cast<const T*>(args.gate_up) + 2 * args.width * blockIdx.x;
  T* out = static_cast<T*>(args.out) + args.width * blockIdx.x;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < args.width; j += step) {
    float values[kWidth];
    activate<kGelu, kWidth>(args, gate + j, values);
    store_pack<kWidth>(out + j, values);
  }
}

// Computes one access of a row as it is stored, and stores it unless `out` is null.
template <bool kGelu, int kWidth>
__device__ void activate_rounded(const SwigluArgs& args, int64_t row, int64_t column, float* g) {
  const auto* gate = static_cast<const bfloat16*>(args.gate_up) + 2 * args.width * row + column;
  activate<kGelu, kWidth>(args, gate, g);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) g[i] = rounded<bfloat16>(g[i]);
  if (args.out != nullptr)
    store_pack<kWidth>(static_cast<bfloat16*>(args.out) + args.width * row + column, g);
}

// Threads keep the row in registers until its largest magnitude is known.
template <bool kGelu, int kWidth, int kPacks, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads) fp8_forward_kernel(SwigluArgs args, Fp8Rows fp8) {
  const int64_t row = first_row();
  if (row >= args.rows) return;  // a warp returns as a whole; a one-row block never returns here
  float values[kPacks][kWidth], most = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= args.width) continue;
    activate_rounded<kGelu, kWidth>(args, row, column, values[p]);
    most = larger_magnitude<kWidth>(most, values[p]);
  }
  const float factor = fp8_row_factor(fp8, row, row_max(most));
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column < args.width)
      store_fp8<kWidth>(fp8.values + row * args.width + column, values[p], factor, false);
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

template <bool kGelu>
void launch_fp8(const SwigluArgs& args, const Fp8Rows& fp8, const RowPlan& plan,
                cudaStream_t stream) {
  const unsigned blocks = blocks_of(plan, args.rows);
  dispatch_width<bfloat16>(args.access, [&]<typename T, int kWidth>() {
    dispatch_block(plan, [&]<int kPacks, int kMaxThreads>() {
      fp8_forward_kernel<kGelu, kWidth, kPacks, kMaxThreads>
          <<<blocks, threads_of(plan), 0, stream>>>(args, fp8);
    });
  });
}

}  // namespace

void launch_swiglu_fp8(const SwigluArgs& args, const Fp8Rows& fp8, const RowPlan& plan,
                       cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return;
  (args.gelu ? launch_fp8<true> : launch_fp8<false>)(args, fp8, plan, stream);
}

void launch_swiglu(const SwigluArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return;
  (args.gelu ? launch<true> : launch<false>)(args, dtype, stream);
}

}  // namespace fastsft::cuda
