#include <algorithm>

#include "ops/adamw/adamw_constants.cuh"
#include "ops/adamw/adamw_launch.h"
#include "ops/adamw/stochastic_rounding.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/master/master_access.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

template <int kWidth>
__device__ void store_moments(float* exp_avg, float* exp_avg_sq, const float* first,
                              const float* second, const AdamwArgs&, int64_t) {
  store_floats<kWidth>(exp_avg, first);
  store_floats<kWidth>(exp_avg_sq, second);
}
template <int kWidth>
__device__ void store_moments(bfloat16* exp_avg, bfloat16* exp_avg_sq, const float* first,
                              const float* second, const AdamwArgs& args, int64_t at) {
  uint32_t words[kWidth];
  element_words<kWidth>(args.seed, static_cast<uint64_t>(args.control[kControlStep]),
                        static_cast<uint64_t>(args.first_element + at), words);
  Pack<bfloat16, kWidth> average, square;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    average.at[i] = rounded_stochastically(first[i], words[i]);
    square.at[i] = rounded_stochastically(second[i], words[i] >> 16);
  }
  *reinterpret_cast<Pack<bfloat16, kWidth>*>(exp_avg) = average;
  *reinterpret_cast<Pack<bfloat16, kWidth>*>(exp_avg_sq) = square;
}

template <typename Master, typename Grad, typename Moment, int kWidth>
__device__ void update(const AdamwArgs& args, int64_t at, const AdamwConstants& constants) {
  float param[kWidth], grad[kWidth], first[kWidth], second[kWidth];
  const MasterPlace<Master> master(args.master, at);
  Moment* exp_avg = static_cast<Moment*>(args.exp_avg) + at;
  Moment* exp_avg_sq = static_cast<Moment*>(args.exp_avg_sq) + at;
  master.template load<kWidth>(param);
  load_wide<kWidth>(static_cast<const Grad*>(args.grad) + at, grad);
  load_wide<kWidth>(exp_avg, first);
  load_wide<kWidth>(exp_avg_sq, second);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    param[i] = adamw_element(param[i], grad[i], first[i], second[i], constants);
  }
  store_moments<kWidth>(exp_avg, exp_avg_sq, first, second, args, at);
  master.template store<kWidth>(param);
}

template <typename Master, typename Grad, typename Moment, int kWidth>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamwArgs args) {
  __shared__ AdamwConstants constants;
  if (threadIdx.x == 0) {
    constants =
        adamw_constants(args.control, args.lr, args.beta1, args.beta2, args.eps, args.weight_decay);
  }
  __syncthreads();
  if (!isfinite(constants.grad_scale)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t accesses = args.count / kWidth;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < accesses; i += step) {
    update<Master, Grad, Moment, kWidth>(args, i * kWidth, constants);
  }
  const int64_t rest = accesses * kWidth + first;  // fewer than kWidth elements
  if (rest < args.count) update<Master, Grad, Moment, 1>(args, rest, constants);
}

template <typename Master, typename Grad, typename Moment>
void launch(const AdamwArgs& args, cudaStream_t stream) {
  const int64_t accesses = std::max<int64_t>(1, args.count / args.width);
  const auto blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, (accesses + kThreads - 1) / kThreads));
  if (args.width == 8)
    adamw_kernel<Master, Grad, Moment, 8><<<blocks, kThreads, 0, stream>>>(args);
  else
    adamw_kernel<Master, Grad, Moment, 1><<<blocks, kThreads, 0, stream>>>(args);
}

template <typename Master, typename Grad>
void launch(const AdamwArgs& args, Dtype moments, cudaStream_t stream) {
  if (moments == Dtype::kFloat)
    launch<Master, Grad, float>(args, stream);
  else
    launch<Master, Grad, bfloat16>(args, stream);
}

template <typename Master>
void launch(const AdamwArgs& args, const AdamwDtypes& dtypes, cudaStream_t stream) {
  if (dtypes.grad == Dtype::kFloat)
    launch<Master, float>(args, dtypes.moments, stream);
  else
    launch<Master, bfloat16>(args, dtypes.moments, stream);
}

}  // namespace

void launch_adamw(const AdamwArgs& args, const AdamwDtypes& dtypes, cudaStream_t stream) {
  if (args.count == 0) return;
  with_master_value(args.master,
                    [&](auto value) { launch<decltype(value)>(args, dtypes, stream); });
}

}  // namespace fastsft::cuda
