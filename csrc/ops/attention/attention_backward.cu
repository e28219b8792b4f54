#include "ops/attention/attention_tile.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kDeltaWarps = 4;

// Computes delta, the dot product of grad_out and out, with one warp per token and head.
template <typename T>
__global__ void __launch_bounds__(kDeltaWarps * 32) delta_kernel(AttentionBackwardArgs args) {
  const AttentionArgs& a = args.forward;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kDeltaWarps + threadIdx.x / 32;
  if (item >= a.tokens * a.num_heads) return;
  const T* grad_out = static_cast<const T*>(args.grad_out) + item * a.head_dim;
  const T* out = static_cast<const T*>(args.out) + item * a.head_dim;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x % 32); d < a.head_dim; d += 32) {
    sum += to_float(grad_out[d]) * to_float(out[d]);
  }
  sum = warp_sum(sum);
  const int64_t token = item / a.num_heads, head = item % a.num_heads;
  if (threadIdx.x % 32 == 0) args.delta[head * a.tokens + token] = sum;
}

// Pointers to one head in one conversation.
template <typename T>
struct Head {
  const T *queries, *keys, *values, *grad_out;
  const float *lse, *delta;
};

template <typename T>
__device__ Head<T> head_of(const AttentionBackwardArgs& args, const Conversation& c, int head) {
  const AttentionArgs& a = args.forward;
  const int kv = head / (a.num_heads / a.num_key_value_heads);
  const T* rows = static_cast<const T*>(args.forward.qkv) + c.begin * a.row();
  const T* keys = rows + static_cast<int64_t>(a.num_heads + kv) * a.head_dim;
  return {.queries = rows + static_cast<int64_t>(head) * a.head_dim,
          .keys = keys,
          .values = keys + static_cast<int64_t>(a.num_key_value_heads) * a.head_dim,
          .grad_out = static_cast<const T*>(args.grad_out) + c.begin * a.out_row() +
                      static_cast<int64_t>(head) * a.head_dim,
          .lse = args.lse + head * a.tokens + c.begin,
          .delta = args.delta + head * a.tokens + c.begin};
}

// Computes the probabilities (unless `p` is null) and d loss / d (q k^T) from the tiles of queries,
// keys, values and grad_out. Inputs and results are in shared memory.
template <int kDim, typename T>
__device__ void grad_scores(const AttentionArgs& args, const Head<T>& head, int64_t query,
                            int64_t key, int64_t length, const float* tiles, float* p, float* ds) {
  using Tile = Tiling<kDim>;
  typename Tile::Scores scores, slopes, grad_p;
  dot_tiles<kDim>(tiles, tiles + Tile::kTileFloats, scores);
  scale_scores<kDim>(args, scores, slopes);
  dot_tiles<kDim>(tiles + 3 * Tile::kTileFloats, tiles + 2 * Tile::kTileFloats, grad_p);
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    const int r = Tile::own_row(i);
    const bool inside = query + r < length;
    const float lse = inside ? head.lse[query + r] : 0, delta = inside ? head.delta[query + r] : 0;
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) {
      const int c = Tile::own_column(j);
      const bool seen = inside && visible(query + r, key + c, args.window);
      const float probability = seen ? expf(scores[i][j] - lse) : 0;
      if (p != nullptr) p[r * Tile::kScoreStride + c] = probability;
      ds[r * Tile::kScoreStride + c] = probability * (grad_p[i][j] - delta) * slopes[i][j];
    }
  }
}

// Computes the query gradients: each block takes one query tile of one head and loops over the
// visible keys. Shared memory holds tiles of queries, keys, values and grad_out, then the score
// gradients.
template <typename T, int kDim>
__global__ void __launch_bounds__(128) query_kernel(AttentionBackwardArgs args) {
  using Tile = Tiling<kDim>;
  extern __shared__ float tiles[];
  float *keys = tiles + Tile::kTileFloats, *values = keys + Tile::kTileFloats;
  float *grad_out = values + Tile::kTileFloats, *ds = grad_out + Tile::kTileFloats;
  const AttentionArgs& a = args.forward;
  const Conversation c(a);
  const int64_t first = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;
  if (first >= c.length) return;
  const Head<T> head = head_of<T>(args, c, static_cast<int>(blockIdx.z));
  load_tile<kDim>(head.queries, a.row(), first, c.length, a.head_dim, tiles);
  load_tile<kDim>(head.grad_out, a.out_row(), first, c.length, a.head_dim, grad_out);
  typename Tile::Rows sums = {};
  const int64_t low = a.window == 0 ? 0 : max(int64_t{0}, first - a.window + 1);
  for (int64_t key = low / Tile::kRows * Tile::kRows; key <= first; key += Tile::kRows) {
    __syncthreads();  // wait until the previous key tile has been read
    load_tile<kDim>(head.keys, a.row(), key, c.length, a.head_dim, keys);
    load_tile<kDim>(head.values, a.row(), key, c.length, a.head_dim, values);
    __syncthreads();
    grad_scores<kDim>(a, head, first, key, c.length, tiles, nullptr, ds);
    __syncthreads();
    add_product<kDim, false>(ds, keys, sums);
  }
  T* to = static_cast<T*>(args.grad_qkv) + c.begin * a.row() +
          static_cast<int64_t>(blockIdx.z) * a.head_dim;
  store_rows<kDim>(sums, first, c.length, a.head_dim, a.row(), to);
}

// Adds one query head's contribution to the gradients of one key and value tile.
template <typename T, int kDim>
__device__ void add_head(const AttentionBackwardArgs& args, const Conversation& c, int index,
                         int64_t key, float* tiles, typename Tiling<kDim>::Rows& grad_keys,
                         typename Tiling<kDim>::Rows& grad_values) {
  using Tile = Tiling<kDim>;
  const AttentionArgs& a = args.forward;
  float *grad_out = tiles + 3 * Tile::kTileFloats, *p = grad_out + Tile::kTileFloats;
  float* ds = p + Tile::kScoreFloats;
  const Head<T> head = head_of<T>(args, c, index);
  const int64_t seen = a.window == 0 ? c.length : min(c.length, key + Tile::kRows - 1 + a.window);
  for (int64_t query = key; query < seen; query += Tile::kRows) {
    __syncthreads();  // wait until the previous tiles have been read
    load_tile<kDim>(head.queries, a.row(), query, c.length, a.head_dim, tiles);
    load_tile<kDim>(head.grad_out, a.out_row(), query, c.length, a.head_dim, grad_out);
    __syncthreads();
    grad_scores<kDim>(a, head, query, key, c.length, tiles, p, ds);
    __syncthreads();
    add_product<kDim, true>(p, grad_out, grad_values);
    add_product<kDim, true>(ds, tiles, grad_keys);
  }
}

// Computes the key and value gradients: each block takes one tile of one key/value head and loops
// over the queries of all query heads that use it, in order. No two blocks write the same row.
template <typename T, int kDim>
__global__ void __launch_bounds__(128) key_kernel(AttentionBackwardArgs args) {
  using Tile = Tiling<kDim>;
  extern __shared__ float tiles[];
  const AttentionArgs& a = args.forward;
  const Conversation c(a);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Tile::kRows;
  if (first >= c.length) return;
  const int kv = static_cast<int>(blockIdx.z), group = a.num_heads / a.num_key_value_heads;
  const Head<T> head = head_of<T>(args, c, kv * group);
  load_tile<kDim>(head.keys, a.row(), first, c.length, a.head_dim, tiles + Tile::kTileFloats);
  load_tile<kDim>(head.values, a.row(), first, c.length, a.head_dim, tiles + 2 * Tile::kTileFloats);
  typename Tile::Rows grad_keys = {}, grad_values = {};
  for (int index = kv * group; index < (kv + 1) * group; ++index) {
    add_head<T, kDim>(args, c, index, first, tiles, grad_keys, grad_values);
  }
  T* to = static_cast<T*>(args.grad_qkv) + c.begin * a.row() +
          static_cast<int64_t>(a.num_heads + kv) * a.head_dim;
  store_rows<kDim>(grad_keys, first, c.length, a.head_dim, a.row(), to);
  store_rows<kDim>(grad_values, first, c.length, a.head_dim, a.row(),
                   to + static_cast<int64_t>(a.num_key_value_heads) * a.head_dim);
}

template <typename T, int kDim>
void launch(const AttentionBackwardArgs& args, cudaStream_t stream) {
  using Tile = Tiling<kDim>;
  constexpr int kQueryBytes = (4 * Tile::kTileFloats + Tile::kScoreFloats) * 4;
  constexpr int kKeyBytes = (4 * Tile::kTileFloats + 2 * Tile::kScoreFloats) * 4;
  const AttentionArgs& a = args.forward;
  const int64_t items = a.tokens * a.num_heads;
  const auto blocks = static_cast<unsigned>((items + kDeltaWarps - 1) / kDeltaWarps);
  delta_kernel<T><<<blocks, kDeltaWarps * 32, 0, stream>>>(args);
  allow_shared_memory(query_kernel<T, kDim>, kQueryBytes);
  query_kernel<T, kDim>
      <<<attention_grid<kDim>(a, a.num_heads), Tile::kThreads, kQueryBytes, stream>>>(args);
  allow_shared_memory(key_kernel<T, kDim>, kKeyBytes);
  key_kernel<T, kDim>
      <<<attention_grid<kDim>(a, a.num_key_value_heads), Tile::kThreads, kKeyBytes, stream>>>(args);
}

}  // namespace

void launch_attention_backward(const AttentionBackwardArgs& args, Dtype dtype,
                               cudaStream_t stream) {
  if (args.forward.tokens == 0 || args.forward.conversations == 0) return;
  dispatch_head(dtype, args.forward.head_dim,
                [&]<typename T, int kDim>() { launch<T, kDim>(args, stream); });
}

}  // namespace fastsft::cuda
