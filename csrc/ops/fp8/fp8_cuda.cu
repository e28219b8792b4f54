#include <algorithm>

#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/fp8/fp8_cast.cuh"
#include "ops/fp8/fp8_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;    // rows and columns that a block transposes
constexpr int kPadded = 68;  // bytes of a tile's row; a multiple of four, not of 128

__device__ float factor_of(float amax, const Fp8Args& args) {
  return fp8_factor(amax, args.e5m2, args.power_of_2);
}

// Writes the largest magnitude that this block has seen to its part.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) amax_kernel(Fp8Args args) {
  const T* x = static_cast<const T*>(args.x);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t accesses = args.rows * args.columns / kWidth;  // kWidth divides the columns
  float most = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < accesses;
       i += step) {
    float values[kWidth];
    load_pack<kWidth>(x + i * kWidth, values);
    most = larger_magnitude<kWidth>(most, values);
  }
  most = block_max(most);
  if (threadIdx.x == 0) args.parts[blockIdx.x] = most;
}

// Returns this thread's share of the matrix's amax.
__device__ float amax_of_parts(const Fp8Args& args) {
  float most = 0;
  for (int64_t i = threadIdx.x; i < args.parts_count; i += kThreads)
    most = fmaxf(most, args.parts[i]);
  return most;
}

// Computes one row per block. With a row's own amax the row is read twice; the second time it comes
// from the cache.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) rows_kernel(Fp8Args args) {
  const int64_t begin = blockIdx.x * args.columns;
  const T* x = static_cast<const T*>(args.x) + begin;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth, step = kThreads * kWidth;
  float values[kWidth];
  float most = 0;
  if (args.parts != nullptr) {
    most = amax_of_parts(args);
  } else {
    for (int64_t j = first; j < args.columns; j += step) {
      load_pack<kWidth>(x + j, values);
      most = larger_magnitude<kWidth>(most, values);
    }
  }
  const float factor = factor_of(block_max(most), args);
  if (threadIdx.x == 0) args.scales[blockIdx.x] = 1.0f / factor;
  for (int64_t j = first; j < args.columns; j += step) {
    load_pack<kWidth>(x + j, values);
    store_fp8<kWidth>(args.out + begin + j, values, factor, args.e5m2);
  }
}

// Writes the largest magnitudes of kTile columns in a slice of the rows to their parts.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) column_amax_kernel(Fp8Args args) {
  constexpr int kAccesses = kTile / kWidth, kRows = kThreads / kAccesses;  // read at once
  __shared__ float largest[kRows][kTile];
  const int64_t tiles = (args.columns + kTile - 1) / kTile;
  const int64_t slice = blockIdx.x / tiles, column = blockIdx.x % tiles * kTile;
  const int lane = static_cast<int>(threadIdx.x) / kAccesses;
  const int c = static_cast<int>(threadIdx.x) % kAccesses * kWidth;
  float most[kWidth] = {};
  for (int64_t row = slice * kRows + lane; row < args.rows; row += args.slices * kRows) {
    if (column + c >= args.columns) break;
    float values[kWidth];
    load_pack<kWidth>(static_cast<const T*>(args.x) + row * args.columns + column + c, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) most[k] = larger_magnitude<1>(most[k], values + k);
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) largest[lane][c + k] = most[k];
  __syncthreads();  // all rows of the slice are in
  const int64_t mine = column + threadIdx.x;
  if (threadIdx.x >= kTile || mine >= args.columns) return;
  float total = 0;
  for (int i = 0; i < kRows; ++i) total = fmaxf(total, largest[i][threadIdx.x]);
  args.parts[slice * args.columns + mine] = total;
}

// Returns the amax of a column.
__device__ float amax_of_column(const Fp8Args& args, int64_t column) {
  float most = 0;
  for (int64_t i = 0; i < args.slices; ++i)
    most = fmaxf(most, args.parts[i * args.columns + column]);
  return most;
}

// Reads a tile of x from (row, column) on, and writes its bytes transposed to shared memory. Rows
// that x lacks are zeros.
template <typename T, int kWidth>
__device__ void read_tile(const Fp8Args& args, int64_t row, int64_t column,
                          const float (&factors)[kTile], uint8_t (&tile)[kTile][kPadded]) {
  constexpr int kAccesses = kTile / kWidth;  // of a tile's row
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kAccesses; i += kThreads) {
    const int r = i / kAccesses, c = i % kAccesses * kWidth;
    if (column + c >= args.columns) continue;
    float values[kWidth] = {};
    if (row + r < args.rows) {
      load_pack<kWidth>(static_cast<const T*>(args.x) + (row + r) * args.columns + column + c,
                        values);
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) tile[c + k][r] = to_fp8(values[k] * factors[c + k], args.e5m2);
  }
}

// Writes the tile to rows [column, column + kTile) of `out`, from element `row` on.
template <typename Word>
__device__ void write_tile(const Fp8Args& args, int64_t row, int64_t column,
                           const uint8_t (&tile)[kTile][kPadded]) {
  constexpr int kBytes = sizeof(Word), kWords = kTile / kBytes;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kWords; i += kThreads) {
    const int c = i / kWords, r = i % kWords * kBytes;
    if (row + r >= args.width || column + c >= args.columns) continue;
    *reinterpret_cast<Word*>(args.out + (column + c) * args.width + row + r) =
        *reinterpret_cast<const Word*>(&tile[c][r]);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) transposed_kernel(Fp8Args args) {
  __shared__ uint8_t tile[kTile][kPadded];
  __shared__ float factors[kTile];
  const int64_t tiles = (args.columns + kTile - 1) / kTile;
  const int64_t row = blockIdx.x / tiles * kTile, column = blockIdx.x % tiles * kTile;
  const float of_matrix = args.slices == 0 ? block_max(amax_of_parts(args)) : 0.0f;
  const int64_t mine = column + threadIdx.x;
  if (threadIdx.x < kTile && mine < args.columns) {
    const float factor = factor_of(args.slices == 0 ? of_matrix : amax_of_column(args, mine), args);
    factors[threadIdx.x] = factor;
    if (row == 0) args.scales[mine] = 1.0f / factor;
  }
  __syncthreads();  // the factors are there
  read_tile<T, kWidth>(args, row, column, factors, tile);
  __syncthreads();  // the tile is complete
  if (args.words)
    write_tile<uint32_t>(args, row, column, tile);
  else
    write_tile<uint8_t>(args, row, column, tile);
}

// Calls launch<T, kWidth>() for the element type and access width.
template <typename Launch>
void dispatch_fp8(Dtype dtype, int width, const Launch& launch) {
  if (dtype == Dtype::kFloat)
    width == 1 ? launch.template operator()<float, 1>() : launch.template operator()<float, 4>();
  else
    width == 1 ? launch.template operator()<bfloat16, 1>()
               : launch.template operator()<bfloat16, 8>();
}

template <typename T, int kWidth>
void launch_amax(const Fp8Args& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.parts_count);
  amax_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

void launch_fp8_quantize(const Fp8Args& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  const auto rows = static_cast<unsigned>(args.rows);
  dispatch_fp8(dtype, args.access, [&]<typename T, int kWidth>() {
    if (args.parts != nullptr) launch_amax<T, kWidth>(args, stream);
    rows_kernel<T, kWidth><<<rows, kThreads, 0, stream>>>(args);
  });
}

void launch_fp8_quantize_transposed(const Fp8Args& args, Dtype dtype, cudaStream_t stream) {
  if (args.width == 0 || args.columns == 0) return;
  const int64_t down = (args.width + kTile - 1) / kTile;
  const int64_t across = (args.columns + kTile - 1) / kTile;
  const auto tiles = static_cast<unsigned>(down * across);
  const auto slices = static_cast<unsigned>(args.slices * across);
  dispatch_fp8(dtype, args.access, [&]<typename T, int kWidth>() {
    if (args.slices > 0)
      column_amax_kernel<T, kWidth><<<slices, kThreads, 0, stream>>>(args);
    else
      launch_amax<T, kWidth>(args, stream);
    transposed_kernel<T, kWidth><<<tiles, kThreads, 0, stream>>>(args);
  });
}

}  // namespace fastsft::cuda
