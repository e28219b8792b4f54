#pragma once

#include "ops/cuda/access.h"
#include "ops/cuda/reduce.cuh"

namespace fastsft::cuda {

// For kernels that keep a row in registers by a RowPlan: a row is one warp if the block has several
// rows, otherwise the whole block.

inline constexpr int kWideThreads = 1024;  // for rows that do not fit into a block's registers

// Return the row's sum, or its largest value, on every thread of the row.
__device__ inline float row_sum(float value) {
  return blockDim.y > 1 ? warp_sum(value) : block_sum(value);
}
__device__ inline float row_max(float value) {
  return blockDim.y > 1 ? warp_max(value) : block_max(value);
}

__device__ inline int64_t first_row() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}

// Returns the first element in this thread's access number `pack`.
template <int kWidth>
__device__ inline int64_t column_of(int pack) {
  return (static_cast<int64_t>(pack) * blockDim.x + threadIdx.x) * kWidth;
}

inline dim3 threads_of(const RowPlan& plan) {
  return dim3(static_cast<unsigned>(plan.threads), static_cast<unsigned>(plan.rows_per_block));
}

inline unsigned blocks_of(const RowPlan& plan, int64_t rows) {
  return static_cast<unsigned>(blocks_for(rows, plan.rows_per_block, int64_t{1} << 31));
}

// Calls launch<kPacks, kMaxThreads>() with the smallest bound that holds the block. With a bound of
// 1024 threads the compiler would spill registers that small blocks have.
template <typename Launch>
void dispatch_block(const RowPlan& plan, const Launch& launch) {
  const int threads = plan.threads * plan.rows_per_block;
  if (plan.packs == 2 && threads <= 128)
    launch.template operator()<2, 128>();
  else if (plan.packs == 2 && threads <= 512)
    launch.template operator()<2, 512>();
  else if (plan.packs == 2)
    launch.template operator()<2, 1024>();
  else if (threads <= 128)
    launch.template operator()<4, 128>();
  else
    launch.template operator()<4, 1024>();
}

}  // namespace fastsft::cuda
