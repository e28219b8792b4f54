#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/qk_norm/qk_norm_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kWarps = kQkNormWarps;

// Accesses per lane that cover kQkNormMaxDim elements.
template <int kWidth>
constexpr int kPacks = (kQkNormMaxDim + 32 * kWidth - 1) / (32 * kWidth);

__device__ int64_t warp_index() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
}
template <int kWidth>
__device__ int column_of(int pack) {
  return (pack * 32 + static_cast<int>(threadIdx.x % 32)) * kWidth;
}

template <typename T, int kWidth>
__device__ void copy_rest(const T* from, T* to, int64_t begin, int64_t end) {
  const int64_t first = begin + static_cast<int64_t>(threadIdx.x % 32) * kWidth;
  for (int64_t j = first; j < end; j += 32 * kWidth) {
    float values[kWidth];
    load_pack<kWidth>(from + j, values);
    store_pack<kWidth>(to + j, values);
  }
}

// Normalises one query or key head per warp; one more warp per token copies the rest of the row.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kWarps * 32) forward_kernel(QkNormArgs args, T* out, float eps) {
  const int heads = args.queries + args.keys;
  const int64_t token = warp_index() / (heads + 1), head = warp_index() % (heads + 1);
  if (token >= args.tokens) return;
  const T* row = static_cast<const T*>(args.x) + token * args.width;
  T* to = out + token * args.width;
  if (head == heads) {
    if (to != row)
      copy_rest<T, kWidth>(row, to, static_cast<int64_t>(heads) * args.dim, args.width);
    return;
  }
  const T* weight = static_cast<const T*>(args.weight) + (head < args.queries ? 0 : args.dim);
  float values[kPacks<kWidth>][kWidth], squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks<kWidth>; ++p) {
    const int j = column_of<kWidth>(p);
    if (j >= args.dim) continue;
    load_pack<kWidth>(row + head * args.dim + j, values[p]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares += values[p][i] * values[p][i];
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(args.dim) + eps);
  if (threadIdx.x % 32 == 0) args.rstd[token * heads + head] = scale;
#pragma unroll
  for (int p = 0; p < kPacks<kWidth>; ++p) {
    const int j = column_of<kWidth>(p);
    if (j >= args.dim) continue;
    float factors[kWidth];
    load_pack<kWidth>(weight + j, factors);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[p][i] *= scale * (args.offset + factors[i]);
    store_pack<kWidth>(to + head * args.dim + j, values[p]);
  }
}

// Computes one head's gradient in place, and adds its weight gradient to `part`.
template <typename T, int kWidth>
__device__ void backward_head(const T* x, const T* weight, T* grad, float scale, float offset,
                              int dim, float (&part)[kPacks<kWidth>][kWidth]) {
  float n[kPacks<kWidth>][kWidth], g[kPacks<kWidth>][kWidth], dot = 0;
#pragma unroll
  for (int p = 0; p < kPacks<kWidth>; ++p) {
    const int j = column_of<kWidth>(p);
    if (j >= dim) continue;
    float factors[kWidth];
    load_pack<kWidth>(x + j, n[p]);
    load_pack<kWidth>(grad + j, g[p]);
    load_pack<kWidth>(weight + j, factors);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      n[p][i] *= scale;
      part[p][i] += g[p][i] * n[p][i];
      g[p][i] *= offset + factors[i];
      dot += g[p][i] * n[p][i];
    }
  }
  const float mean = warp_sum(dot) / static_cast<float>(dim);
#pragma unroll
  for (int p = 0; p < kPacks<kWidth>; ++p) {
    const int j = column_of<kWidth>(p);
    if (j >= dim) continue;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[p][i] = scale * (g[p][i] - n[p][i] * mean);
    store_pack<kWidth>(grad + j, g[p]);
  }
}

// Handles heads [first, last) of tokens w, w + step, ... on warp w. `kind` (0: query, 1: key)
// selects the row for the warp's partial weight gradient.
template <bool kSums, typename T, int kWidth>
__device__ void backward_heads(const QkNormArgs& args, T* grad, int kind, int first, int last,
                               float* parts) {
  float part[kPacks<kWidth>][kWidth] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t token = warp_index(); token < args.tokens; token += step) {
    const int64_t heads = token * (args.queries + args.keys);
    for (int head = first; head < last; ++head) {
      const int64_t at = token * args.width + static_cast<int64_t>(head) * args.dim;
      backward_head<T, kWidth>(static_cast<const T*>(args.x) + at,
                               static_cast<const T*>(args.weight) + kind * args.dim, grad + at,
                               args.rstd[heads + head], args.offset, args.dim, part);
    }
  }
  if constexpr (!kSums) return;
  float* to = parts + (warp_index() * 2 + kind) * args.dim;
#pragma unroll
  for (int p = 0; p < kPacks<kWidth>; ++p) {
    const int j = column_of<kWidth>(p);
    if (j < args.dim) store_floats<kWidth>(to + j, part[p]);
  }
}

template <bool kSums, typename T, int kWidth>
__global__ void __launch_bounds__(kWarps * 32)
    backward_kernel(QkNormArgs args, T* grad, float* parts) {
  backward_heads<kSums, T, kWidth>(args, grad, 0, 0, args.queries, parts);
  backward_heads<kSums, T, kWidth>(args, grad, 1, args.queries, args.queries + args.keys, parts);
}

}  // namespace

void launch_qk_norm(const QkNormArgs& args, void* out, float eps, Dtype dtype,
                    cudaStream_t stream) {
  const int64_t warps = args.tokens * (args.queries + args.keys + 1);
  if (warps == 0) return;
  const auto blocks = static_cast<unsigned>((warps + kWarps - 1) / kWarps);
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    forward_kernel<T, kWidth><<<blocks, kWarps * 32, 0, stream>>>(args, static_cast<T*>(out), eps);
  });
}

void launch_qk_norm_backward(const QkNormArgs& args, void* grad, float* parts, int64_t count,
                             Dtype dtype, cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(count / kWarps);
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    T* to = static_cast<T*>(grad);
    if (parts == nullptr)
      backward_kernel<false, T, kWidth><<<blocks, kWarps * 32, 0, stream>>>(args, to, nullptr);
    else
      backward_kernel<true, T, kWidth><<<blocks, kWarps * 32, 0, stream>>>(args, to, parts);
  });
}

}  // namespace fastsft::cuda
