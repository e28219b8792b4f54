#include <algorithm>

#include "ops/bias/bias_launch.h"
#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kColumns = 32;  // accesses per row of a block
constexpr int kRows = 8;      // rows that a block reads in parallel

// Adds the bias to one row per block.
template <typename T, int kWidth>
__global__ void add_kernel(T* x, const T* bias, int64_t width) {
  T* row = x + blockIdx.x * width;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < width; j += step) {
    float values[kWidth], added[kWidth];
    load_pack<kWidth>(row + j, values);
    load_pack<kWidth>(bias + j, added);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += added[i];
    store_pack<kWidth>(row + j, values);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kColumns* kRows)
    parts_kernel(const T* grad, int64_t rows, int64_t width, float* parts) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x) * kWidth;
  if (column >= width) return;
  const int64_t part = static_cast<int64_t>(blockIdx.y) * kRows + threadIdx.y;
  float sum[kWidth] = {};
#pragma unroll 4
  for (int64_t row = part; row < rows; row += kBiasParts) {
    float values[kWidth];
    load_pack<kWidth>(grad + row * width + column, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
  }
  store_floats<kWidth>(parts + part * width + column, sum);
}

}  // namespace

void launch_add_bias(void* x, const void* bias, int64_t rows, int64_t width, int access,
                     Dtype dtype, cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  const int64_t accesses = width / access;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(256, (accesses + 31) / 32 * 32));
  dispatch(dtype, access, [&]<typename T, int kWidth>() {
    add_kernel<T, kWidth><<<static_cast<unsigned>(rows), threads, 0, stream>>>(
        static_cast<T*>(x), static_cast<const T*>(bias), width);
  });
}

void launch_bias_parts(const void* grad, int64_t rows, int64_t width, int access, float* parts,
                       Dtype dtype, cudaStream_t stream) {
  if (width == 0) return;
  const int64_t columns = static_cast<int64_t>(kColumns) * access;
  const dim3 blocks(static_cast<unsigned>((width + columns - 1) / columns), kBiasParts / kRows);
  dispatch(dtype, access, [&]<typename T, int kWidth>() {
    parts_kernel<T, kWidth><<<blocks, dim3(kColumns, kRows), 0, stream>>>(
        static_cast<const T*>(grad), rows, width, parts);
  });
}

}  // namespace fastsft::cuda
