#include <algorithm>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/rope/rope_launch.h"

namespace fastsft::cuda {
namespace {

// Rotates one token per block. A thread handles kWidth elements of a head's first half and their
// partners in the second half.
template <typename T, int kWidth>
__global__ void rope_kernel(RopeArgs args) {
  T* row = static_cast<T*>(args.x) + blockIdx.x * args.stride;
  const int64_t table = static_cast<int64_t>(args.positions[blockIdx.x]) * args.half;
  const int accesses = args.half / kWidth, items = args.num_heads * accesses;
  for (int item = static_cast<int>(threadIdx.x); item < items;
       item += static_cast<int>(blockDim.x)) {
    const int head = item / accesses, j = (item - head * accesses) * kWidth;
    T* u = row + static_cast<int64_t>(head) * 2 * args.half + j;
    float a[kWidth], b[kWidth], cos[kWidth], sin[kWidth];
    load_pack<kWidth>(u, a);
    load_pack<kWidth>(u + args.half, b);
    load_floats<kWidth>(args.cos + table + j, cos);
    load_floats<kWidth>(args.sin + table + j, sin);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float first = a[i], second = b[i], s = args.direction * sin[i];
      a[i] = first * cos[i] - second * s;
      b[i] = second * cos[i] + first * s;
    }
    store_pack<kWidth>(u, a);
    store_pack<kWidth>(u + args.half, b);
  }
}

}  // namespace

void launch_rope(const RopeArgs& args, Dtype dtype, cudaStream_t stream) {
  const int items = args.num_heads * (args.half / args.width);
  if (args.rows == 0 || items == 0) return;
  const int threads = std::min(256, (items + 31) / 32 * 32);
  dispatch(dtype, args.width, [&]<typename T, int kWidth>() {
    rope_kernel<T, kWidth><<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args);
  });
}

}  // namespace fastsft::cuda
