#include <algorithm>

#include "ops/grouped_gemm/grouped_gemm_launch.h"
#include "ops/grouped_gemm/tile_product.cuh"

namespace fastsft::cuda {
namespace {

// A block's rows [first, end) of one expert; none if `first` is not below `end`.
struct RowTile {
  int expert;
  int64_t first, end;
};

// Returns the rows of block number `slot`. The host does not know the groups' sizes, so each expert
// e has the slots from offsets[e] / kTile + e on, which always suffice: there are at most rows /
// kTile + experts slots, and some have no rows.
template <int kTile>
__device__ RowTile row_tile(const int* offsets, int64_t experts, int64_t slot) {
  int low = 0, high = static_cast<int>(experts);
  while (high - low > 1) {  // the last expert whose first slot is not above `slot`
    const int middle = (low + high) / 2;
    (offsets[middle] / kTile + middle <= slot ? low : high) = middle;
  }
  const int64_t number = slot - offsets[low] / kTile - low;
  return {low, offsets[low] + number * kTile, offsets[low + 1]};
}

// Computes one tile of out per block: rows of one expert, blockIdx.y selects the columns.
template <typename T, bool kTranspose, int kWidth>
__global__ void __launch_bounds__(kTileThreads) grouped_gemm_kernel(GroupedGemmArgs args) {
  constexpr int kTile = TileSize<T>::kTile;
  using Memory = TileMemory<T, true, kTranspose>;
  __shared__ Memory memory;
  const RowTile rows = row_tile<kTile>(args.offsets, args.experts, blockIdx.x);
  if (rows.first >= rows.end) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t inputs = args.inputs, outputs = args.outputs;
  const T* weights = static_cast<const T*>(args.weights) + rows.expert * inputs * outputs;
  const Operand<T> left{static_cast<const T*>(args.x) + rows.first * inputs, inputs,
                        rows.end - rows.first};
  const Operand<T> right{weights + (kTranspose ? column * inputs : column),
                         kTranspose ? inputs : outputs, outputs - column};
  TileSums<T> sums;
  add_products<T, true, kTranspose, kWidth>(memory, left, right, inputs, sums);
  T* out = static_cast<T*>(args.out);
  sums.for_each(memory.staging, [&](int i, int j, float sum) {
    if (rows.first + i < rows.end && column + j < outputs)
      store(&out[(rows.first + i) * outputs + column + j], sum);
  });
}

// Computes one tile of an expert's gradient per block, over the expert's rows in their order.
template <typename T, typename G, int kWidth>
__global__ void __launch_bounds__(kTileThreads) grouped_gradient_kernel(GroupedGradientArgs args) {
  constexpr int kTile = TileSize<T>::kTile;
  using Memory = TileMemory<T, false, false>;
  __shared__ Memory memory;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile,
                row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t inputs = args.inputs, outputs = args.outputs;
  const int64_t begin = args.offsets[blockIdx.z], end = args.offsets[blockIdx.z + 1];
  const Operand<T> left{static_cast<const T*>(args.grad_y) + begin * outputs + row, outputs,
                        outputs - row};
  const Operand<T> right{static_cast<const T*>(args.x) + begin * inputs + column, inputs,
                         inputs - column};
  TileSums<T> sums;
  add_products<T, false, false, kWidth>(memory, left, right, end - begin, sums);
  G* out = static_cast<G*>(args.grad_weights) + blockIdx.z * inputs * outputs;
  sums.for_each(memory.staging, [&](int i, int j, float sum) {
    if (row + i >= outputs || column + j >= inputs) return;
    G* to = &out[(row + i) * inputs + column + j];
    store(to, args.beta == 0 ? sum : sum + args.beta * to_float(*to));
  });
}

template <typename T>
unsigned tiles_of(int64_t size) {
  return static_cast<unsigned>((size + TileSize<T>::kTile - 1) / TileSize<T>::kTile);
}

}  // namespace

void launch_grouped_gemm(const GroupedGemmArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0 || args.outputs == 0) return;
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    const int64_t slots = args.rows / TileSize<T>::kTile + args.experts;
    const dim3 blocks(static_cast<unsigned>(slots), tiles_of<T>(args.outputs));
    if (args.transpose)
      grouped_gemm_kernel<T, true, kWidth><<<blocks, kTileThreads, 0, stream>>>(args);
    else
      grouped_gemm_kernel<T, false, kWidth><<<blocks, kTileThreads, 0, stream>>>(args);
  });
}

void launch_grouped_gradient(const GroupedGradientArgs& args, Dtype dtype, bool narrow,
                             cudaStream_t stream) {
  if (args.inputs == 0 || args.outputs == 0) return;
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    const dim3 blocks(tiles_of<T>(args.inputs), tiles_of<T>(args.outputs),
                      static_cast<unsigned>(args.experts));
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (narrow) {
        grouped_gradient_kernel<T, bfloat16, kWidth><<<blocks, kTileThreads, 0, stream>>>(args);
        return;
      }
    }
    grouped_gradient_kernel<T, float, kWidth><<<blocks, kTileThreads, 0, stream>>>(args);
  });
}

}  // namespace fastsft::cuda
