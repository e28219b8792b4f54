#include <algorithm>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/embedding/embedding_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kBackwardThreads = 128;

// Copies one token's row per block.
template <typename T, int kWidth>
__global__ void gather_kernel(EmbeddingArgs args) {
  const int64_t id = args.ids[blockIdx.x];
  if (id < 0 || id >= args.vocab) __trap();
  using Access = Pack<T, kWidth>;
  const int64_t accesses = args.hidden / kWidth;
  const auto* from =
      reinterpret_cast<const Access*>(static_cast<const T*>(args.weight) + id * args.hidden);
  auto* to = reinterpret_cast<Access*>(static_cast<T*>(args.out) + blockIdx.x * args.hidden);
  for (int64_t j = threadIdx.x; j < accesses; j += blockDim.x) to[j] = from[j];
}

// Adds the gradients of equal ids. The block at an id's first sorted position adds all rows of
// that id in order; other blocks return. No two blocks write the same row, and the sum does not
// depend on timing. blockIdx.y selects the columns.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kBackwardThreads) scatter_kernel(EmbeddingBackwardArgs args) {
  const int64_t first = blockIdx.x, id = args.sorted_ids[first];
  if (first > 0 && args.sorted_ids[first - 1] == id) return;
  if (id < 0 || id >= args.vocab) __trap();
  const int64_t column =
      (static_cast<int64_t>(blockIdx.y) * kBackwardThreads + threadIdx.x) * kWidth;
  if (column >= args.hidden) return;
  float* to = args.grad_weight + id * args.hidden + column;
  const T* from = static_cast<const T*>(args.grad_out) + column;
  float sum[kWidth];
  load_floats<kWidth>(to, sum);
#pragma unroll 4
  for (int64_t i = first; i < args.tokens && args.sorted_ids[i] == id; ++i) {
    float row[kWidth];
    load_pack<kWidth>(from + args.order[i] * args.hidden, row);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sum[k] += row[k];
  }
  store_floats<kWidth>(to, sum);
}

}  // namespace

void launch_embedding(const EmbeddingArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.tokens == 0) return;
  const int64_t accesses = args.hidden / args.width;
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(accesses, 1, 256));
  dispatch(dtype, args.width, [&]<typename T, int kWidth>() {
    gather_kernel<T, kWidth><<<static_cast<unsigned>(args.tokens), threads, 0, stream>>>(args);
  });
}

void launch_embedding_backward(const EmbeddingBackwardArgs& args, Dtype dtype,
                               cudaStream_t stream) {
  if (args.tokens == 0 || args.hidden == 0) return;
  const int64_t columns = static_cast<int64_t>(kBackwardThreads) * args.width;
  const dim3 blocks(static_cast<unsigned>(args.tokens),
                    static_cast<unsigned>((args.hidden + columns - 1) / columns));
  dispatch(dtype, args.width, [&]<typename T, int kWidth>() {
    scatter_kernel<T, kWidth><<<blocks, kBackwardThreads, 0, stream>>>(args);
  });
}

}  // namespace fastsft::cuda
