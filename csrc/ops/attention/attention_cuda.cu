#include <cfloat>

#include "ops/attention/attention_tile.cuh"

namespace fastsft::cuda {
namespace {

// State of the online softmax for a thread's rows: the largest score, the sum of exponentials over
// the thread's columns, and the unnormalised output.
template <int kDim>
struct Progress {
  using Tile = Tiling<kDim>;
  float highest[Tile::kOwnRows], sum[Tile::kOwnRows];
  typename Tile::Rows out;
};

// These reductions run over the 16 threads that share rows.
__device__ float row_max(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}
__device__ float row_add(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// Replaces the scores of a tile by probabilities, up to a factor that later tiles correct. The tile
// begins at `query` and `key`. `highest` starts finite, so that a tile without visible keys adds
// zero.
template <int kDim>
__device__ void softmax_tile(const AttentionArgs& args, int64_t query, int64_t key,
                             typename Tiling<kDim>::Scores& scores, Progress<kDim>& progress,
                             float* probabilities) {
  using Tile = Tiling<kDim>;
  typename Tile::Scores slopes;
  scale_scores<kDim>(args, scores, slopes);
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    const int r = Tile::own_row(i);
    float highest = progress.highest[i];
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) {
      const bool seen = visible(query + r, key + Tile::own_column(j), args.window);
      scores[i][j] = seen ? scores[i][j] : -INFINITY;
      highest = fmaxf(highest, scores[i][j]);
    }
    highest = row_max(highest);
    const float correction = expf(progress.highest[i] - highest);
    progress.highest[i] = highest;
    progress.sum[i] *= correction;
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) {
      const float p = expf(scores[i][j] - highest);
      progress.sum[i] += p;
      probabilities[r * Tile::kScoreStride + Tile::own_column(j)] = p;
    }
#pragma unroll
    for (int k = 0; k < Tile::kOwnDims; ++k) progress.out[i][k] *= correction;
  }
}

template <int kDim, typename T>
__device__ void finish(const AttentionArgs& args, const Conversation& c, int64_t first, int head,
                       Progress<kDim>& progress, T* out, float* lse) {
  using Tile = Tiling<kDim>;
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    const float sum = row_add(progress.sum[i]);
#pragma unroll
    for (int k = 0; k < Tile::kOwnDims; ++k) progress.out[i][k] /= sum;
    const int64_t query = first + Tile::own_row(i);
    if (query < c.length && threadIdx.x % 16 == 0)
      lse[head * args.tokens + c.begin + query] = progress.highest[i] + logf(sum);
  }
  T* to = out + c.begin * args.out_row() + static_cast<int64_t>(head) * args.head_dim;
  store_rows<kDim>(progress.out, first, c.length, args.head_dim, args.out_row(), to);
}

// Computes the output for one query tile of one head per block. Keys and values share a buffer.
template <typename T, int kDim>
__global__ void __launch_bounds__(128) forward_kernel(AttentionArgs args, T* out, float* lse) {
  using Tile = Tiling<kDim>;
  extern __shared__ float shared[];
  float *queries = shared, *other = queries + Tile::kTileFloats;
  float* probabilities = other + Tile::kTileFloats;
  const Conversation c(args);
  const int64_t first = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;
  if (first >= c.length) return;
  const int head = static_cast<int>(blockIdx.z), dim = args.head_dim;
  const int kv = head / (args.num_heads / args.num_key_value_heads);
  const T* rows = static_cast<const T*>(args.qkv) + c.begin * args.row();
  const T* keys = rows + static_cast<int64_t>(args.num_heads + kv) * dim;
  const T* values = keys + static_cast<int64_t>(args.num_key_value_heads) * dim;
  load_tile<kDim>(rows + static_cast<int64_t>(head) * dim, args.row(), first, c.length, dim,
                  queries);
  Progress<kDim> progress = {};
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) progress.highest[i] = -FLT_MAX;
  const int64_t low = args.window == 0 ? 0 : max(int64_t{0}, first - args.window + 1);
  for (int64_t key = low / Tile::kRows * Tile::kRows; key <= first; key += Tile::kRows) {
    __syncthreads();  // wait until the previous value tile has been read
    load_tile<kDim>(keys, args.row(), key, c.length, dim, other);
    __syncthreads();
    typename Tile::Scores scores;
    dot_tiles<kDim>(queries, other, scores);
    softmax_tile<kDim>(args, first, key, scores, progress, probabilities);
    __syncthreads();  // wait until the keys have been read
    load_tile<kDim>(values, args.row(), key, c.length, dim, other);
    __syncthreads();
    add_product<kDim, false>(probabilities, other, progress.out);
  }
  finish<kDim>(args, c, first, head, progress, out, lse);
}

}  // namespace

void launch_attention(const AttentionArgs& args, void* out, float* lse, Dtype dtype,
                      cudaStream_t stream) {
  if (args.tokens == 0 || args.conversations == 0) return;
  dispatch_head(dtype, args.head_dim, [&]<typename T, int kDim>() {
    using Tile = Tiling<kDim>;
    constexpr int kBytes = (2 * Tile::kTileFloats + Tile::kScoreFloats) * 4;
    allow_shared_memory(forward_kernel<T, kDim>, kBytes);
    forward_kernel<T, kDim>
        <<<attention_grid<kDim>(args, args.num_heads), Tile::kThreads, kBytes, stream>>>(
            args, static_cast<T*>(out), lse);
  });
}

}  // namespace fastsft::cuda
