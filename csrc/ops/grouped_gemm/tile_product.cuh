#pragma once

#include <mma.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {

inline constexpr int kTileThreads = 256;

// The size of a block's tile of the result, kTile x kTile, and of a step of the sum.
template <typename T>
struct TileSize {  // of 16 bits: tensor cores
  static constexpr int kTile = 128, kDepth = 32;
};
template <>
struct TileSize<float> {
  static constexpr int kTile = 64, kDepth = 16;
};

// One operand's tile in shared memory: kTile rows (or columns) of the result by kDepth terms of the
// sum. `kAlongDepth`: neighbours in memory are terms of the sum; otherwise rows of the result.
// Shared memory has the tensor's order.
template <typename T, bool kAlongDepth>
struct OperandTile {
  static constexpr int kTile = TileSize<T>::kTile, kDepth = TileSize<T>::kDepth;
  static constexpr int kLines = kAlongDepth ? kTile : kDepth;
  static constexpr int kLength = kAlongDepth ? kDepth : kTile;
  static constexpr int kStride =
      kLength + 16 / static_cast<int>(sizeof(T));  // fewer bank conflicts
  T values[kLines * kStride];

  // Returns the place of the tile's row `row` at term `depth`.
  __device__ static int place(int row, int depth) {
    return kAlongDepth ? row * kStride + depth : depth * kStride + row;
  }
};

// A thread's part of an operand's tile, on its way from global to shared memory.
template <typename T, bool kAlongDepth, int kWidth>
class OperandLoad {
 public:
  using Tile = OperandTile<T, kAlongDepth>;

  // Loads from a matrix of `lines` lines of `length` elements; what is beyond them is 0.
  __device__ void load(const T* from, int64_t stride, int64_t lines, int64_t length) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int line = line_of(i), column = column_of(i);
      held_[i] = Pack<T, kWidth>{};
      if (line < lines && column < length)
        held_[i] = *reinterpret_cast<const Pack<T, kWidth>*>(from + line * stride + column);
    }
  }

  __device__ void store(Tile& tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      T* to = tile.values + line_of(i) * Tile::kStride + column_of(i);
      *reinterpret_cast<Pack<T, kWidth>*>(to) = held_[i];
    }
  }

 private:
  static constexpr int kPacks = Tile::kLength / kWidth;  // of a line
  static constexpr int kCount = Tile::kLines * kPacks / kTileThreads;

  __device__ static int line_of(int i) {
    return (static_cast<int>(threadIdx.x) + i * kTileThreads) / kPacks;
  }
  __device__ static int column_of(int i) {
    return (static_cast<int>(threadIdx.x) + i * kTileThreads) % kPacks * kWidth;
  }

  Pack<T, kWidth> held_[kCount];
};

// The sums of a tile of the result. Eight warps have 32 rows and 64 columns each, in fragments of
// 16 x 16.
template <typename T>
class TileSums {
 public:
  struct Staging {
    static constexpr int kStride = 20;
    float values[8][16 * kStride];
  };

  __device__ TileSums() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) nvcuda::wmma::fill_fragment(sums_[i][j], 0.0f);
    }
  }

  template <bool kLeft, bool kRight>
  __device__ void add(const OperandTile<T, kLeft>& left, const OperandTile<T, kRight>& right) {
    using Left = OperandTile<T, kLeft>;
    using Right = OperandTile<T, kRight>;
    using Rows = nvcuda::wmma::row_major;
    using Columns = nvcuda::wmma::col_major;
    using LeftOrder = std::conditional_t<kLeft, Rows, Columns>;
    using RightOrder = std::conditional_t<kRight, Columns, Rows>;
#pragma unroll
    for (int depth = 0; depth < TileSize<T>::kDepth; depth += 16) {
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, T, LeftOrder> a[kRows];
      nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, T, RightOrder> b[kColumns];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const T* from = left.values + Left::place(row(i), depth);
        nvcuda::wmma::load_matrix_sync(a[i], from, Left::kStride);
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const T* from = right.values + Right::place(column(j), depth);
        nvcuda::wmma::load_matrix_sync(b[j], from, Right::kStride);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
          nvcuda::wmma::mma_sync(sums_[i][j], a[i], b[j], sums_[i][j]);
      }
    }
  }

  // Calls write(row, column, sum) for the tile's elements. All threads of the block must call it.
  template <typename Write>
  __device__ void for_each(Staging& staging, const Write& write) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* part = staging.values[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        __syncthreads();  // wait until the fragment before has been read
        nvcuda::wmma::store_matrix_sync(part, sums_[i][j], Staging::kStride,
                                        nvcuda::wmma::mem_row_major);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int at = lane + 32 * k;
          write(row(i) + at / 16, column(j) + at % 16, part[at / 16 * Staging::kStride + at % 16]);
        }
      }
    }
  }

 private:
  static constexpr int kRows = 2, kColumns = 4;

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 64 * 32 + i * 16; }
  __device__ static int column(int j) {
    return static_cast<int>(threadIdx.x) / 32 % 2 * 64 + j * 16;
  }

  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums_[kRows][kColumns];
};

// In float32 thread (x, y) of 16 x 16 has the rows y + 16 * i and the columns x + 16 * j.
template <>
class TileSums<float> {
 public:
  struct Staging {};

  template <bool kLeft, bool kRight>
  __device__ void add(const OperandTile<float, kLeft>& left,
                      const OperandTile<float, kRight>& right) {
#pragma unroll
    for (int depth = 0; depth < TileSize<float>::kDepth; ++depth) {
      float a[kOwn], b[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        a[i] = left.values[OperandTile<float, kLeft>::place(row(i), depth)];
        b[i] = right.values[OperandTile<float, kRight>::place(column(i), depth)];
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums_[i][j] += a[i] * b[j];
      }
    }
  }

  template <typename Write>
  __device__ void for_each(Staging&, const Write& write) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) write(row(i), column(j), sums_[i][j]);
    }
  }

 private:
  static constexpr int kOwn = 4;

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 16 + 16 * i; }
  __device__ static int column(int j) { return static_cast<int>(threadIdx.x) % 16 + 16 * j; }

  float sums_[kOwn][kOwn] = {};
};

template <typename T, bool kLeft, bool kRight>
struct TileMemory {
  alignas(32) OperandTile<T, kLeft> left;
  alignas(32) OperandTile<T, kRight> right;
  alignas(32) typename TileSums<T>::Staging staging;
};

// A matrix operand from the tile's first element on: `rows` rows of the result, `stride` elements
// from line to line.
template <typename T>
struct Operand {
  const T* from;
  int64_t stride, rows;
};

// Adds the product's terms [0, depth) to `sums`. All threads of the block must call it.
template <typename T, bool kLeft, bool kRight, int kWidth>
__device__ void add_products(TileMemory<T, kLeft, kRight>& memory, const Operand<T>& left,
                             const Operand<T>& right, int64_t depth, TileSums<T>& sums) {
  constexpr int kDepth = TileSize<T>::kDepth;
  OperandLoad<T, kLeft, kWidth> a;
  OperandLoad<T, kRight, kWidth> b;
  const auto load = [&](int64_t first) {
    const int64_t rest = depth - first;
    if constexpr (kLeft)
      a.load(left.from + first, left.stride, left.rows, rest);
    else
      a.load(left.from + first * left.stride, left.stride, rest, left.rows);
    if constexpr (kRight)
      b.load(right.from + first, right.stride, right.rows, rest);
    else
      b.load(right.from + first * right.stride, right.stride, rest, right.rows);
  };
  // Single elements would take too many registers next to the sums.
  constexpr bool kLoadsAhead = kWidth > 1;
  if (kLoadsAhead) load(0);
  for (int64_t first = 0; first < depth; first += kDepth) {
    if (!kLoadsAhead) load(first);
    __syncthreads();  // wait until the previous tiles have been read
    a.store(memory.left);
    b.store(memory.right);
    __syncthreads();
    if (kLoadsAhead && first + kDepth < depth)
      load(first + kDepth);  // while these tiles are multiplied
    sums.add(memory.left, memory.right);
  }
}

}  // namespace fastsft::cuda
