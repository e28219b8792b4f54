#include <algorithm>

#include "ops/adamw/adamw_launch.h"
#include "ops/adamw/stochastic_rounding.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/gradient/step_scalars.h"
#include "ops/master/master_access.cuh"

namespace fastsft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

// Factors of an AdamW step. Bias corrections are computed in float64, as in torch.
struct AdamwConstants {
  float decay, beta1_rest, beta2, beta2_rest, bias2_sqrt, step_size, eps, grad_scale;
};

__device__ AdamwConstants adamw_constants(const double* scalars, double lr, double beta1,
                                          double beta2, double eps, double weight_decay) {
  const double step = scalars[kStepNumber];
  return {.decay = static_cast<float>(1.0 - lr * weight_decay),
          .beta1_rest = static_cast<float>(1.0 - beta1),
          .beta2 = static_cast<float>(beta2),
          .beta2_rest = static_cast<float>(1.0 - beta2),
          .bias2_sqrt = static_cast<float>(sqrt(1.0 - pow(beta2, step))),
          .step_size = static_cast<float>(lr / (1.0 - pow(beta1, step))),
          .eps = static_cast<float>(eps),
          .grad_scale = static_cast<float>(scalars[kStepGradScale])};
}

// Returns the updated parameter and updates the moments in place.
__device__ float adamw_element(float param, float grad, float& exp_avg, float& exp_avg_sq,
                               const AdamwConstants& c) {
  const float g = grad * c.grad_scale;
  exp_avg += c.beta1_rest * (g - exp_avg);
  exp_avg_sq = exp_avg_sq * c.beta2 + c.beta2_rest * g * g;
  const float denominator = sqrtf(exp_avg_sq) / c.bias2_sqrt + c.eps;
  return param * c.decay - c.step_size * (exp_avg / denominator);
}

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
  element_words<kWidth>(args.seed, static_cast<uint64_t>(args.scalars[kStepNumber]),
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
        adamw_constants(args.scalars, args.lr, args.beta1, args.beta2, args.eps, args.weight_decay);
  }
  __syncthreads();
  if (!isfinite(constants.grad_scale)) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t accesses = args.count / kWidth;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < accesses; i += step) {
    update<Master, Grad, Moment, kWidth>(args, i * kWidth, constants);
  }
  const int64_t rest = accesses * kWidth + first;  // the rest, fewer than kWidth
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
