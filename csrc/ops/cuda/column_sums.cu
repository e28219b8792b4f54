#include "ops/cuda/column_sums.h"

namespace fastsft::cuda {
namespace {

constexpr int kSide = 32;

// Sums columns: thread (x, y) adds rows y, y + 32, ... of one column, then the 32 partial sums are
// added in order.
__global__ void __launch_bounds__(kSide* kSide)
    column_sums_kernel(const float* parts, int64_t rows, int64_t columns, float beta, float* out) {
  __shared__ float sums[kSide][kSide];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSide + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = threadIdx.y; row < rows; row += kSide) sum += parts[row * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = beta == 0 ? 0 : beta * out[column];
  for (int i = 0; i < kSide; ++i) total += sums[i][threadIdx.x];
  out[column] = total;
}

}  // namespace

void launch_column_sums(const float* parts, int64_t rows, int64_t columns, float beta, float* out,
                        cudaStream_t stream) {
  if (columns == 0) return;
  const auto blocks = static_cast<unsigned>((columns + kSide - 1) / kSide);
  column_sums_kernel<<<blocks, dim3(kSide, kSide), 0, stream>>>(parts, rows, columns, beta, out);
}

}  // namespace fastsft::cuda
