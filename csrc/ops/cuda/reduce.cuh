#pragma once

namespace fastsft::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The sum over the warp on every lane, in a fixed order.
template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// The sum over blockDim.x threads (a multiple of 32) of a block with one row of threads, on every
// thread, in a fixed order. All threads must call it.
template <typename T>
__device__ inline T block_sum(T value) {
  __shared__ T sums[32];
  value = warp_sum(value);
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  T total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += sums[warp];
  return total;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

// The largest over a block, as block_sum.
__device__ inline float block_max(float value) {
  __shared__ float largest[32];
  value = warp_max(value);
  __syncthreads();  // the last call's values have been read
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = value;
  __syncthreads();
  float total = largest[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) total = fmaxf(total, largest[warp]);
  return total;
}

}  // namespace fastsft::cuda
