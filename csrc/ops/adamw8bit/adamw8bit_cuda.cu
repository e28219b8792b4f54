#include <algorithm>

#include "ops/adamw8bit/adamw8bit_launch.h"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/gradient/step_scalars.h"
#include "ops/master/master_access.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kBlock = 256;  // elements per quantization block, one per thread
constexpr int64_t kMaxBlocks = 4096;

struct Averages {
  float scale, beta1, beta1_rest, beta2, beta2_rest;
};

__device__ inline Averages averages_of(const Adamw8bitMomentArgs& m) {
  return {.scale = static_cast<float>(m.scalars[kStepGradScale]),
          .beta1 = static_cast<float>(m.beta1),
          .beta1_rest = static_cast<float>(1.0 - m.beta1),
          .beta2 = static_cast<float>(m.beta2),
          .beta2_rest = static_cast<float>(1.0 - m.beta2)};
}

// Computes the new moments of element `at`, which is in the range's block number `block`.
template <typename Grad>
__device__ inline void next_moments(const Adamw8bitMomentArgs& args, const float* levels,
                                    const Averages& c, int64_t at, int64_t block, float* m,
                                    float* v) {
  const float g = to_float(static_cast<const Grad*>(args.grad)[at]) * c.scale;
  const float old_m = levels[args.state1[at]] * args.absmax1[block];
  const float old_v = levels[2 * kBlock + args.state2[at]] * args.absmax2[block];
  *m = old_m * c.beta1 + c.beta1_rest * g;
  *v = old_v * c.beta2 + c.beta2_rest * g * g;
}

// Returns a value's code: how many `bounds` are below value / absmax.
__device__ inline uint8_t code_of(float value, const float* bounds, float absmax) {
  const float inverse = 1.0f / fmaxf(absmax, 1e-38f);
  const float x = fminf(fmaxf(value * inverse, -1.0f), 1.0f);
  int place = 0;
#pragma unroll
  for (int step = kBlock / 2; step > 0; step /= 2) {
    if (bounds[place + step - 1] < x) place += step;
  }
  return static_cast<uint8_t>(place);
}

struct Steps {
  float bias2_sqrt, step_size, eps, decay;
};

__device__ inline Steps steps_of(const Adamw8bitArgs& args) {
  const double step = args.moments.scalars[kStepNumber];
  return {.bias2_sqrt = static_cast<float>(sqrt(1.0 - pow(args.moments.beta2, step))),
          .step_size = static_cast<float>(args.lr / (1.0 - pow(args.moments.beta1, step))),
          .eps = static_cast<float>(args.eps),
          .decay = static_cast<float>(1.0 - args.lr * args.weight_decay)};
}

template <typename Master>
__device__ inline void update(const Adamw8bitArgs& args, const Steps& c, int64_t at, float m,
                              float v) {
  const MasterPlace<Master> master(args.master, at);
  float param;
  master.template load<1>(&param);
  param = param * c.decay - c.step_size * (m / (sqrtf(v) / c.bias2_sqrt + c.eps));
  master.template store<1>(&param);
}

__device__ inline void load_levels(const float* from, float* levels) {
  for (int i = threadIdx.x; i < 4 * kBlock; i += kBlock) levels[i] = from[i];
  __syncthreads();
}

// Updates the range. Thread blocks take its quantization blocks in turn.
template <typename Master, typename Grad>
__global__ void __launch_bounds__(kBlock) adamw8bit_kernel(Adamw8bitArgs args, int64_t blocks) {
  __shared__ float levels[4 * kBlock];
  __shared__ Steps steps;
  const Adamw8bitMomentArgs& moments = args.moments;
  const Averages averages = averages_of(moments);
  if (!isfinite(averages.scale)) return;
  if (threadIdx.x == 0) steps = steps_of(args);
  load_levels(moments.levels, levels);
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t at = (args.first / kBlock + block) * kBlock + threadIdx.x - args.first;
    const bool here = at >= 0 && at < moments.count;
    float m = 0, v = 0;
    if (here) {
      next_moments<Grad>(moments, levels, averages, at, block, &m, &v);
      update<Master>(args, steps, at, m, v);
    }
    float most_m = block_max(fabsf(m)), most_v = block_max(v);
    const float* edges[] = {block == 0 ? args.first_edge : nullptr,
                            block == blocks - 1 ? args.last_edge : nullptr};
    for (const float* edge : edges) {
      if (edge == nullptr) continue;
      most_m = fmaxf(most_m, edge[0]);
      most_v = fmaxf(most_v, edge[1]);
    }
    if (here) {
      moments.state1[at] = code_of(m, levels + kBlock, most_m);
      moments.state2[at] = code_of(v, levels + 3 * kBlock, most_v);
    }
    if (threadIdx.x == 0) {  // after block_max, all threads have read the old absmax
      moments.absmax1[block] = most_m;
      moments.absmax2[block] = most_v;
    }
  }
}

template <typename Grad>
__global__ void __launch_bounds__(kBlock)
    maxima_kernel(Adamw8bitMomentArgs moments, float* maxima) {
  __shared__ float levels[4 * kBlock];
  load_levels(moments.levels, levels);
  float m = 0, v = 0;
  if (threadIdx.x < moments.count) {
    next_moments<Grad>(moments, levels, averages_of(moments), threadIdx.x, 0, &m, &v);
  }
  m = block_max(fabsf(m));
  v = block_max(v);
  if (threadIdx.x != 0) return;
  maxima[0] = fmaxf(maxima[0], m);
  maxima[1] = fmaxf(maxima[1], v);
}

template <typename Master>
void launch(const Adamw8bitArgs& args, cudaStream_t stream) {
  const int64_t end = args.first + args.moments.count;
  const int64_t blocks = (end - 1) / kBlock - args.first / kBlock + 1;
  const auto grid = static_cast<unsigned>(std::min(kMaxBlocks, blocks));
  if (args.moments.dtype == Dtype::kFloat)
    adamw8bit_kernel<Master, float><<<grid, kBlock, 0, stream>>>(args, blocks);
  else
    adamw8bit_kernel<Master, bfloat16><<<grid, kBlock, 0, stream>>>(args, blocks);
}

}  // namespace

void launch_adamw8bit(const Adamw8bitArgs& args, cudaStream_t stream) {
  if (args.moments.count == 0) return;
  with_master_value(args.master, [&](auto value) { launch<decltype(value)>(args, stream); });
}

void launch_adamw8bit_maxima(const Adamw8bitMomentArgs& moments, float* maxima,
                             cudaStream_t stream) {
  if (moments.dtype == Dtype::kFloat)
    maxima_kernel<float><<<1, kBlock, 0, stream>>>(moments, maxima);
  else
    maxima_kernel<bfloat16><<<1, kBlock, 0, stream>>>(moments, maxima);
}

}  // namespace fastsft::cuda
