#include <algorithm>

#include "ops/cuda/dispatch.cuh"
#include "ops/nf4/nf4_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // warps per thread block; each handles one block of values at a time
constexpr int kLevels = 16;
constexpr int kBytes = 33;
constexpr int kGroup = 256;

template <typename T>
__global__ void __launch_bounds__(kWarp* kWarps) dequantize_kernel(Nf4Args args) {
  __shared__ float levels[kLevels];
  if (threadIdx.x < kLevels) levels[threadIdx.x] = args.levels[threadIdx.x];
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  for (; block < args.blocks; block += step) {
    const uint8_t* bytes = args.packed + block * kBytes;
    // The product is rounded before the mean is added, as in bitsandbytes.
    const float level = args.levels[kLevels + bytes[kBytes - 1]];
    const float scale =
        __fadd_rn(__fmul_rn(level, args.scales[1 + block / kGroup]), args.scales[0]);
    const int pair = bytes[lane];
    const float values[2] = {levels[pair >> 4] * scale, levels[pair & 15] * scale};
    store_pack<2>(static_cast<T*>(args.out) + (block * kWarp + lane) * 2, values);
  }
}

}  // namespace

void launch_nf4_dequantize(const Nf4Args& args, Dtype dtype, cudaStream_t stream) {
  if (args.blocks == 0) return;
  constexpr int64_t kMostBlocks = 132 * 16;  // one wave on the largest devices
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>(kMostBlocks, (args.blocks + kWarps - 1) / kWarps));
  dispatch(dtype,
           [&]<typename T>() { dequantize_kernel<T><<<grid, kWarp * kWarps, 0, stream>>>(args); });
}

}  // namespace fastsft::cuda
