#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/rms_norm_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ float to_float(float value) { return value; }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

// The sum over the block, in a fixed order, on every thread.
__device__ float block_sum(float value) {
  __shared__ float sums[kWarps];
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
  return total;
}

// One block a row.
template <typename T>
__global__ void forward_kernel(RmsNormArgs args) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * args.hidden;
  const T* x = static_cast<const T*>(args.x) + at;
  const T* residual = static_cast<const T*>(args.residual);
  const T* weight = static_cast<const T*>(args.weight);
  T* sum = static_cast<T*>(args.sum) + at;
  T* out = static_cast<T*>(args.out) + at;
  float squares = 0;
  for (int64_t j = threadIdx.x; j < args.hidden; j += kThreads) {
    if (residual != nullptr) store(&sum[j], to_float(x[j]) + to_float(residual[at + j]));
    const float value = to_float(residual != nullptr ? sum[j] : x[j]);
    squares += value * value;
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(args.hidden) + args.eps);
  if (threadIdx.x == 0) args.rstd[blockIdx.x] = scale;
  const T* row = residual != nullptr ? sum : x;
  for (int64_t j = threadIdx.x; j < args.hidden; j += kThreads) {
    store(&out[j], to_float(row[j]) * scale * to_float(weight[j]));
  }
}

template <typename T>
__device__ void backward_row(const RmsNormBackwardArgs& args, int64_t row, float* part) {
  const T* grad_out = static_cast<const T*>(args.grad_out) + row * args.hidden;
  const T* x = static_cast<const T*>(args.x) + row * args.hidden;
  const T* weight = static_cast<const T*>(args.weight);
  T* grad_x = static_cast<T*>(args.grad_x) + row * args.hidden;
  float dot = 0;
  for (int64_t j = threadIdx.x; j < args.hidden; j += kThreads) {
    dot += to_float(grad_out[j]) * to_float(weight[j]) * to_float(x[j]);
  }
  const float scale = args.rstd[row];
  const float mean = block_sum(dot) * scale * scale / static_cast<float>(args.hidden);
  for (int64_t j = threadIdx.x; j < args.hidden; j += kThreads) {
    const float g = to_float(grad_out[j]), value = to_float(x[j]);
    part[j] += g * value * scale;  // column j belongs to this thread
    store(&grad_x[j], to_float(grad_x[j]) + scale * (g * to_float(weight[j]) - value * mean));
  }
}

// Block p takes rows p, p + kParts, ... and sums their weight gradient apart.
template <typename T>
__global__ void backward_kernel(RmsNormBackwardArgs args) {
  float* part = args.parts + static_cast<int64_t>(blockIdx.x) * args.hidden;
  for (int64_t j = threadIdx.x; j < args.hidden; j += kThreads) part[j] = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x)
    backward_row<T>(args, row, part);
}

__global__ void weight_kernel(RmsNormBackwardArgs args) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= args.hidden) return;
  float total = args.beta == 0 ? 0 : args.beta * args.grad_weight[j];
  for (int64_t part = 0; part < kRmsNormParts; ++part) total += args.parts[part * args.hidden + j];
  args.grad_weight[j] = total;
}

}  // namespace

void launch_rms_norm(const RmsNormArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0) return;
  const auto blocks = static_cast<unsigned>(args.rows);
  if (dtype == Dtype::kFloat)
    forward_kernel<float><<<blocks, kThreads, 0, stream>>>(args);
  else
    forward_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(args);
}

void launch_rms_norm_backward(const RmsNormBackwardArgs& args, Dtype dtype, cudaStream_t stream) {
  if (dtype == Dtype::kFloat)
    backward_kernel<float><<<kRmsNormParts, kThreads, 0, stream>>>(args);
  else
    backward_kernel<__nv_bfloat16><<<kRmsNormParts, kThreads, 0, stream>>>(args);
  const auto blocks = static_cast<unsigned>((args.hidden + kThreads - 1) / kThreads);
  weight_kernel<<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace fastsft::cuda
