#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/fp8/fp8_cast.cuh"
#include "ops/rms_norm/rms_norm_launch.h"

namespace fastsft::cuda {
namespace {

// Computes sum = x + residual for one access, rounded as stored. Without a residual, returns x.
template <typename T, int kWidth>
__device__ void add_residual(const RmsNormArgs& args, int64_t at, float* values) {
  load_pack<kWidth>(static_cast<const T*>(args.x) + at, values);
  if (args.residual == nullptr) return;
  float residual[kWidth];
  load_pack<kWidth>(static_cast<const T*>(args.residual) + at, residual);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values[i] = rounded<T>(values[i] + residual[i]);
  store_pack<kWidth>(static_cast<T*>(args.sum) + at, values);
}

// Turns sums into the norm's result, rounded as stored, and stores it unless `out` is null.
template <typename T, int kWidth>
__device__ void normalize(const RmsNormArgs& args, int64_t row, int64_t column, float scale,
                          float* values) {
  float weight[kWidth];
  load_pack<kWidth>(static_cast<const T*>(args.weight) + column, weight);
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    values[i] = rounded<T>(values[i] * scale * (args.offset + weight[i]));
  if (args.out != nullptr)
    store_pack<kWidth>(static_cast<T*>(args.out) + row * args.hidden + column, values);
}

template <bool kFp8, typename T, int kWidth, int kPacks, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(RmsNormArgs args) {
  const int64_t row = first_row();
  if (row >= args.rows) return;  // a warp returns as a whole; a one-row block never returns here
  float values[kPacks][kWidth], squares = 0, most = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= args.hidden) continue;
    add_residual<T, kWidth>(args, row * args.hidden + column, values[p]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares += values[p][i] * values[p][i];
  }
  const float scale = rsqrtf(row_sum(squares) / static_cast<float>(args.hidden) + args.eps);
  if (threadIdx.x == 0) args.rstd[row] = scale;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= args.hidden) continue;
    normalize<T, kWidth>(args, row, column, scale, values[p]);
    if constexpr (kFp8) most = larger_magnitude<kWidth>(most, values[p]);
  }
  if constexpr (kFp8) {
    const float factor = fp8_row_factor(args.fp8, row, row_max(most));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = column_of<kWidth>(p);
      if (column < args.hidden)
        store_fp8<kWidth>(args.fp8.values + row * args.hidden + column, values[p], factor, false);
    }
  }
}

// Handles rows that do not fit into a block's registers, by reading them twice.
template <typename T>
__global__ void __launch_bounds__(kWideThreads) wide_forward_kernel(RmsNormArgs args) {
  const int64_t row = blockIdx.x, begin = row * args.hidden;
  float squares = 0;
  for (int64_t j = threadIdx.x; j < args.hidden; j += kWideThreads) {
    float value;
    add_residual<T, 1>(args, begin + j, &value);
    squares += value * value;
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(args.hidden) + args.eps);
  if (threadIdx.x == 0) args.rstd[row] = scale;
  const T* source = static_cast<const T*>(args.residual == nullptr ? args.x : args.sum) + begin;
  for (int64_t j = threadIdx.x; j < args.hidden; j += kWideThreads) {
    float value = to_float(source[j]);
    normalize<T, 1>(args, row, j, scale, &value);
  }
}

template <typename T, int kWidth>
__device__ void load_weight(const RmsNormBackwardArgs& args, int64_t column, float* weight) {
  load_pack<kWidth>(static_cast<const T*>(args.weight) + column, weight);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) weight[i] += args.offset;
}

// Computes one access: grad_x += scale * (g * weight - x * mean), part += g * x * scale. With
// kRemake, grad_out's elements are overwritten last.
template <bool kRemake, typename T, int kWidth>
__device__ void backward_access(const RmsNormBackwardArgs& args, int64_t at, int64_t column,
                                float scale, float mean, const Pack<T, kWidth>& x,
                                const Pack<T, kWidth>& g, float* part) {
  float weight[kWidth], grad[kWidth];
  load_weight<T, kWidth>(args, column, weight);
  load_pack<kWidth>(static_cast<const T*>(args.grad_x) + at, grad);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float value = to_float(x.at[i]), grad_out = to_float(g.at[i]);
    part[i] += grad_out * value * scale;
    grad[i] += scale * (grad_out * weight[i] - value * mean);
  }
  store_pack<kWidth>(static_cast<T*>(args.grad_x) + at, grad);
  if constexpr (kRemake) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) weight[i] = to_float(x.at[i]) * scale * weight[i];
    store_pack<kWidth>(static_cast<T*>(args.grad_out) + at, weight);
  }
}

template <typename T, int kWidth>
__device__ float weighted_dot(const RmsNormBackwardArgs& args, int64_t column,
                              const Pack<T, kWidth>& x, const Pack<T, kWidth>& g) {
  float weight[kWidth], dot = 0;
  load_weight<T, kWidth>(args, column, weight);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) dot += to_float(g.at[i]) * weight[i] * to_float(x.at[i]);
  return dot;
}

template <typename T, int kWidth>
__device__ const Pack<T, kWidth>& pack_at(const void* from, int64_t at) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(from) + at);
}

// Computes one row; x and grad_out stay packed in registers between the two passes.
template <bool kRemake, typename T, int kWidth, int kPacks>
__device__ void backward_row(const RmsNormBackwardArgs& args, int64_t row,
                             float (&part)[kPacks][kWidth]) {
  Pack<T, kWidth> x[kPacks], g[kPacks];
  float dot = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= args.hidden) continue;
    x[p] = pack_at<T, kWidth>(args.x, row * args.hidden + column);
    g[p] = pack_at<T, kWidth>(args.grad_out, row * args.hidden + column);
    dot += weighted_dot<T, kWidth>(args, column, x[p], g[p]);
  }
  const float scale = args.rstd[row];
  const float mean = row_sum(dot) * scale * scale / static_cast<float>(args.hidden);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= args.hidden) continue;
    backward_access<kRemake, T, kWidth>(args, row * args.hidden + column, column, scale, mean, x[p],
                                        g[p], part[p]);
  }
}

// Each row of threads handles every (blocks * rows_per_block)-th row and accumulates its own
// partial weight gradient.
template <bool kRemake, typename T, int kWidth, int kPacks, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads) backward_kernel(RmsNormBackwardArgs args) {
  float part[kPacks][kWidth] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t row = first_row(); row < args.rows; row += step) {
    backward_row<kRemake, T, kWidth, kPacks>(args, row, part);
  }
  if (args.parts == nullptr) return;
  float* to = args.parts + first_row() * args.hidden;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column < args.hidden) store_floats<kWidth>(to + column, part[p]);
  }
}

template <bool kRemake, typename T>
__global__ void __launch_bounds__(kWideThreads) wide_backward_kernel(RmsNormBackwardArgs args) {
  const bool sums = args.parts != nullptr;
  float* part = sums ? args.parts + static_cast<int64_t>(blockIdx.x) * args.hidden : nullptr;
  if (sums) {
    for (int64_t j = threadIdx.x; j < args.hidden; j += kWideThreads) part[j] = 0;
  }
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t begin = row * args.hidden;
    float dot = 0;
    for (int64_t j = threadIdx.x; j < args.hidden; j += kWideThreads) {
      dot += weighted_dot<T, 1>(args, j, pack_at<T, 1>(args.x, begin + j),
                                pack_at<T, 1>(args.grad_out, begin + j));
    }
    const float scale = args.rstd[row];
    const float mean = block_sum(dot) * scale * scale / static_cast<float>(args.hidden);
    for (int64_t j = threadIdx.x; j < args.hidden; j += kWideThreads) {
      float unused = 0;
      backward_access<kRemake, T, 1>(
          args, begin + j, j, scale, mean, pack_at<T, 1>(args.x, begin + j),
          pack_at<T, 1>(args.grad_out, begin + j), sums ? &part[j] : &unused);
    }
  }
}

template <bool kFp8, typename T, int kWidth>
void launch_forward(const RmsNormArgs& args, cudaStream_t stream) {
  dispatch_block(args.plan, [&]<int kPacks, int kMaxThreads>() {
    forward_kernel<kFp8, T, kWidth, kPacks, kMaxThreads>
        <<<blocks_of(args.plan, args.rows), threads_of(args.plan), 0, stream>>>(args);
  });
}

template <bool kRemake>
void launch_backward(const RmsNormBackwardArgs& args, Dtype dtype, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.blocks);
  const dim3 threads = threads_of(args.plan);
  dispatch(dtype, args.width, [&]<typename T, int kWidth>() {
    if (args.plan.packs == 0) {
      wide_backward_kernel<kRemake, T><<<blocks, kWideThreads, 0, stream>>>(args);
      return;
    }
    dispatch_block(args.plan, [&]<int kPacks, int kMaxThreads>() {
      backward_kernel<kRemake, T, kWidth, kPacks, kMaxThreads>
          <<<blocks, threads, 0, stream>>>(args);
    });
  });
}

}  // namespace

void launch_rms_norm(const RmsNormArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  if (args.fp8.values != nullptr) {
    dispatch_width<bfloat16>(args.width, [&]<typename T, int kWidth>() {
      launch_forward<true, T, kWidth>(args, stream);
    });
    return;
  }
  dispatch(dtype, args.width, [&]<typename T, int kWidth>() {
    if (args.plan.packs == 0)
      wide_forward_kernel<T><<<blocks_of(args.plan, args.rows), kWideThreads, 0, stream>>>(args);
    else
      launch_forward<false, T, kWidth>(args, stream);
  });
}

void launch_rms_norm_backward(const RmsNormBackwardArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  (args.recompute ? launch_backward<true> : launch_backward<false>)(args, dtype, stream);
}

}  // namespace fastsft::cuda
