#pragma once

#include "ops/attention/attention_choice.h"
#include "ops/attention/attention_launch.h"
#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/reduce.cuh"

namespace fastsft::cuda {

// The division of a kRows-token tile among 128 threads. Thread (x, y) of 16 x 8 owns rows y *
// kOwnRows + i, the columns x + 16 * j of a score tile, and the elements x + 16 * k of a head.
template <int kDim>
struct Tiling {
  static constexpr int kThreads = 128;
  static constexpr int kRows = tiled_rows(kDim);
  static constexpr int kOwnRows = kRows / 8;
  static constexpr int kOwnColumns = kRows / 16;
  static constexpr int kOwnDims = kDim / 16;
  // A stride of width + 1 puts neighbouring rows into different banks.
  static constexpr int kStride = kDim + 1;
  static constexpr int kScoreStride = kRows + 1;
  static constexpr int kTileFloats = kRows * kStride;
  static constexpr int kScoreFloats = kRows * kScoreStride;

  using Scores = float[kOwnRows][kOwnColumns];
  using Rows = float[kOwnRows][kOwnDims];

  __device__ static int own_row(int i) { return static_cast<int>(threadIdx.x) / 16 * kOwnRows + i; }
  __device__ static int own_column(int j) { return static_cast<int>(threadIdx.x) % 16 + 16 * j; }
};

// This thread block's conversation.
struct Conversation {
  int64_t begin, length;

  __device__ Conversation(const AttentionArgs& args)
      : begin(args.cu_seqlens[blockIdx.y]), length(args.cu_seqlens[blockIdx.y + 1] - begin) {}
};

__device__ inline bool visible(int64_t query, int64_t key, int64_t window) {
  return key <= query && (window == 0 || query - key < window);
}

// Loads one head's rows [first, first + kRows) into shared memory. Rows from `length` on and
// columns beyond the head are zero.
template <int kDim, typename T>
__device__ void load_tile(const T* head, int64_t row, int64_t first, int64_t length, int head_dim,
                          float* tile) {
  using Tile = Tiling<kDim>;
  for (int at = static_cast<int>(threadIdx.x); at < Tile::kRows * kDim; at += Tile::kThreads) {
    const int r = at / kDim, d = at % kDim;
    const bool inside = first + r < length && d < head_dim;
    tile[r * Tile::kStride + d] = inside ? to_float(head[(first + r) * row + d]) : 0.0f;
  }
}

// Computes scores[i][j], the dot product of own row i of `a` and own column j of `b`.
template <int kDim>
__device__ void dot_tiles(const float* a, const float* b, typename Tiling<kDim>::Scores& scores) {
  using Tile = Tiling<kDim>;
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) scores[i][j] = 0;
  }
#pragma unroll 4
  for (int d = 0; d < kDim; ++d) {
    float right[Tile::kOwnColumns];
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) {
      right[j] = b[Tile::own_column(j) * Tile::kStride + d];
    }
#pragma unroll
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      const float left = a[Tile::own_row(i) * Tile::kStride + d];
#pragma unroll
      for (int j = 0; j < Tile::kOwnColumns; ++j) scores[i][j] += left * right[j];
    }
  }
}

// Applies scale and softcap to q k^T; `slopes` receives the derivatives.
template <int kDim>
__device__ void scale_scores(const AttentionArgs& args, typename Tiling<kDim>::Scores& scores,
                             typename Tiling<kDim>::Scores& slopes) {
  using Tile = Tiling<kDim>;
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) {
      scores[i][j] *= args.scale;
      slopes[i][j] = args.scale;
    }
  }
  if (args.softcap == 0) return;
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kOwnColumns; ++j) {
      const float t = tanhf(scores[i][j] / args.softcap);
      scores[i][j] = args.softcap * t;
      slopes[i][j] *= 1.0f - t * t;
    }
  }
}

// Adds scores x tile to `sums`. Own row i uses row own_row(i) of `scores`, or the column if
// `transposed`.
template <int kDim, bool transposed>
__device__ void add_product(const float* scores, const float* tile,
                            typename Tiling<kDim>::Rows& sums) {
  using Tile = Tiling<kDim>;
#pragma unroll 2
  for (int c = 0; c < Tile::kRows; ++c) {
    float left[Tile::kOwnRows];
#pragma unroll
    for (int i = 0; i < Tile::kOwnRows; ++i) {
      const int r = Tile::own_row(i);
      left[i] = scores[transposed ? c * Tile::kScoreStride + r : r * Tile::kScoreStride + c];
    }
#pragma unroll
    for (int k = 0; k < Tile::kOwnDims; ++k) {
      const float right = tile[c * Tile::kStride + Tile::own_column(k)];
#pragma unroll
      for (int i = 0; i < Tile::kOwnRows; ++i) sums[i][k] += left[i] * right;
    }
  }
}

// Stores this thread's tile rows, multiplied by factor[i], if they are inside the
// conversation.
template <int kDim, typename T>
__device__ void store_rows(const typename Tiling<kDim>::Rows& rows, int64_t first, int64_t length,
                           int head_dim, int64_t row, T* head) {
  using Tile = Tiling<kDim>;
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows; ++i) {
    const int64_t at = first + Tile::own_row(i);
    if (at >= length) continue;
#pragma unroll
    for (int k = 0; k < Tile::kOwnDims; ++k) {
      const int d = Tile::own_column(k);
      if (d < head_dim) store(&head[at * row + d], rows[i][k]);
    }
  }
}

// Calls launch<T, kDim>() for the dtype and the padded head size.
template <typename Launch>
void dispatch_head(Dtype dtype, int head_dim, const Launch& launch) {
  const int dim = tiled_head_dim(head_dim);
  const auto of_dtype = [&]<typename T>() {
    if (dim == 64)
      launch.template operator()<T, 64>();
    else if (dim == 128)
      launch.template operator()<T, 128>();
    else
      launch.template operator()<T, 256>();
  };
  dispatch(dtype, of_dtype);
}

// Returns a grid with one block per tile of the longest conversation, conversation and head. Blocks
// past the end of a shorter conversation return immediately. Tiles are on the x axis, which allows
// 2^31 - 1 blocks; y and z allow 65,535.
template <int kDim>
dim3 attention_grid(const AttentionArgs& args, int heads) {
  constexpr int kRows = Tiling<kDim>::kRows;
  return dim3(static_cast<unsigned>((args.max_seqlen + kRows - 1) / kRows),
              static_cast<unsigned>(args.conversations), static_cast<unsigned>(heads));
}

// Raises the kernel's limit for dynamic shared memory, which is 48 KiB by default.
template <typename Kernel>
void allow_shared_memory(Kernel kernel, int bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace fastsft::cuda
