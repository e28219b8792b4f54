#pragma once

namespace fastsft::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Returns the warp's sum on every lane, added in a fixed order.
template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// Returns the block's sum on every thread, added in a fixed order. The block is one-dimensional,
// and blockDim.x is a multiple of 32. All threads must call it.
template <typename T>
__device__ inline T block_sum(T value) {
  __shared__ T sums[32];
  value = warp_sum(value);
  __syncthreads();  // wait until the previous call's sums have been read
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

// Returns the block's largest value on every thread, under the conditions of block_sum.
__device__ inline float block_max(float value) {
  __shared__ float largest[32];
  value = warp_max(value);
  __syncthreads();  // wait until the previous call's values have been read
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = value;
  __syncthreads();
  float total = largest[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) total = fmaxf(total, largest[warp]);
  return total;
}

}  // namespace fastsft::cuda
