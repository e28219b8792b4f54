#include <algorithm>

#include "ops/adamw/stochastic_rounding.cuh"
#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/dropout/dropout_launch.h"

namespace fastsft::cuda {
namespace {

__device__ uint4 mask_words(const DropoutArgs& args, unsigned key, int64_t block) {
  return philox({static_cast<unsigned>(block), key, args.stream, 0},
                {static_cast<unsigned>(args.seed), static_cast<unsigned>(args.seed >> 32)});
}

// Writes the random words of columns [first, first + kWidth) to `words`. kWidth is 1, or a multiple
// of 4; in that case `first` must be a multiple of 4, too.
template <int kWidth>
__device__ void column_words(const DropoutArgs& args, unsigned key, int64_t first,
                             uint32_t* words) {
  if constexpr (kWidth == 1) {
    const uint4 block = mask_words(args, key, first / 4);
    const unsigned place = first % 4;
    words[0] = place == 0 ? block.x : place == 1 ? block.y : place == 2 ? block.z : block.w;
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const uint4 block = mask_words(args, key, (first + i) / 4);
      words[i] = block.x, words[i + 1] = block.y, words[i + 2] = block.z, words[i + 3] = block.w;
    }
  }
}

// Applies dropout to one row per block.
template <typename T, int kWidth>
__global__ void dropout_kernel(DropoutArgs args) {
  const int64_t row = blockIdx.x, begin = row * args.width;
  const auto key = static_cast<unsigned>(args.keys[row]);
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kWidth; j < args.width; j += step) {
    uint32_t words[kWidth];
    float values[kWidth], held[kWidth] = {};
    column_words<kWidth>(args, key, j, words);
    load_pack<kWidth>(static_cast<const T*>(args.x) + begin + j, values);
    if (args.beta != 0) load_pack<kWidth>(static_cast<const T*>(args.out) + begin + j, held);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float kept = words[i] >= args.first_kept ? values[i] * args.scale : 0.0f;
      held[i] = args.beta * held[i] + kept;
    }
    store_pack<kWidth>(static_cast<T*>(args.out) + begin + j, held);
  }
}

}  // namespace

void launch_dropout(const DropoutArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return;
  const int64_t accesses = args.width / args.access;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(256, (accesses + 31) / 32 * 32));
  dispatch(dtype, args.access, [&]<typename T, int kWidth>() {
    dropout_kernel<T, kWidth><<<static_cast<unsigned>(args.rows), threads, 0, stream>>>(args);
  });
}

}  // namespace fastsft::cuda
