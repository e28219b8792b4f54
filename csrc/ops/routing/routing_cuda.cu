#include <climits>
#include <cmath>

#include "ops/cuda/dispatch.cuh"
#include "ops/cuda/pack.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/routing/routing_launch.h"

namespace fastsft::cuda {
namespace {

constexpr int kRouteWarps = 4;      // tokens a block, one a warp
constexpr int kGroupThreads = 256;  // of the block that lists an expert's pairs

// Sets p = softmax(logits). Lane l computes and owns the elements l, l + 32, ..., which no other
// lane reads.
template <typename T>
__device__ void probabilities(const T* logits, int experts, int lane, float* p) {
  float highest = -INFINITY, sum = 0;
  for (int e = lane; e < experts; e += 32) {
    p[e] = to_float(logits[e]);
    highest = fmaxf(highest, p[e]);
  }
  highest = warp_max(highest);
  for (int e = lane; e < experts; e += 32) {
    p[e] = expf(p[e] - highest);
    sum += p[e];
  }
  sum = warp_sum(sum);
  for (int e = lane; e < experts; e += 32) p[e] /= sum;
}

struct Candidate {
  float value;
  int expert;

  __device__ bool is_behind(const Candidate& other) const {
    return other.value > value || (other.value == value && other.expert < expert);
  }
};

// Returns the largest probability on every lane, of equal ones that of the lowest expert. NaN
// counts as 0; elements of -1 are taken.
__device__ Candidate largest(const float* p, int experts, int lane) {
  Candidate best{-2.0f, INT_MAX};
  for (int e = lane; e < experts; e += 32) {
    const Candidate own{p[e] == p[e] ? p[e] : 0.0f, e};
    if (best.is_behind(own)) best = own;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    Candidate other;
    other.value = __shfl_xor_sync(kAllLanes, best.value, offset);
    other.expert = __shfl_xor_sync(kAllLanes, best.expert, offset);
    if (best.is_behind(other)) best = other;
  }
  return best;
}

// Chooses one token's experts per warp. Lane i keeps and writes the i-th one.
template <typename T>
__global__ void route_kernel(RouteArgs args) {
  extern __shared__ float probability_memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (token >= args.tokens) return;
  float* p = probability_memory + warp * args.experts;
  probabilities(static_cast<const T*>(args.logits) + token * args.experts, args.experts, lane, p);
  // A NaN among the logits makes all probabilities NaN, which `largest` counts as 0.
  const float nan_or_zero = warp_sum(lane < args.experts ? 0.0f * p[lane] : 0.0f);
  float sum = 0;
  Candidate kept{0.0f, 0};
  for (int i = 0; i < args.chosen; ++i) {
    Candidate best = largest(p, args.experts, lane);
    if (best.expert % 32 == lane) p[best.expert] = -1.0f;
    best.value += nan_or_zero;
    sum += best.value;
    if (i == lane) kept = best;
  }
  if (lane >= args.chosen) return;
  const int64_t at = token * args.chosen + lane;
  args.chosen_experts[at] = kept.expert;
  store(static_cast<T*>(args.weights) + at, args.normalize ? kept.value / sum : kept.value);
}

// Returns which of the token's chosen experts `expert` is; -1 if it was not chosen.
__device__ int place_of(const int* chosen_experts, int chosen, int expert) {
  for (int i = 0; i < chosen; ++i) {
    if (chosen_experts[i] == expert) return i;
  }
  return -1;
}

// Computes one token's gradient per warp.
template <typename T>
__global__ void route_backward_kernel(RouteArgs args) {
  extern __shared__ float probability_memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouteWarps + warp;
  if (token >= args.tokens) return;
  float* p = probability_memory + warp * args.experts;
  probabilities(static_cast<const T*>(args.logits) + token * args.experts, args.experts, lane, p);
  const int* chosen = args.chosen_experts + token * args.chosen;
  const float* grad = args.gradient + token * args.chosen;
  float sum = 0, dot = 0;
  for (int e = lane; e < args.experts; e += 32) {
    const int i = place_of(chosen, args.chosen, e);
    if (i < 0) continue;
    sum += p[e];
    dot += p[e] * grad[i];
  }
  sum = warp_sum(sum);
  dot = warp_sum(dot);
  if (!args.normalize) sum = 1;
  T* to = static_cast<T*>(args.grad_logits) + token * args.experts;
  for (int e = lane; e < args.experts; e += 32) {
    const int i = place_of(chosen, args.chosen, e);
    const float weight = args.normalize && i < 0 ? 0.0f : p[e] / sum;
    store(to + e, weight * ((i < 0 ? 0.0f : grad[i]) - dot / sum));
  }
}

// Lists one expert's pairs per block. Each thread reads one range of all pairs, so that the order
// is that of the pairs.
__global__ void __launch_bounds__(kGroupThreads) group_pairs_kernel(GroupPairsArgs args) {
  __shared__ int counts[kGroupThreads];
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int64_t begin = args.count * thread / kGroupThreads,
                end = args.count * (thread + 1) / kGroupThreads;
  int own = 0, lower = 0;
  for (int64_t i = begin; i < end; ++i) {
    own += args.chosen_experts[i] == expert;
    lower += args.chosen_experts[i] < expert;
  }
  counts[thread] = own;
  const int first = block_sum(lower);  // its barriers publish `counts`, too
  int row = first;
  for (int i = 0; i < thread; ++i) row += counts[i];
  for (int64_t i = begin; i < end; ++i) {
    if (args.chosen_experts[i] != expert) continue;
    args.pairs[row] = static_cast<int>(i);
    args.rows[i] = row++;
  }
  if (thread > 0) return;
  args.offsets[expert] = first;
  if (expert + 1 == static_cast<int>(gridDim.x))
    args.offsets[expert + 1] = static_cast<int>(args.count);
}

}  // namespace

void launch_route(const RouteArgs& args, Dtype dtype, cudaStream_t stream) {
  if (args.tokens == 0) return;
  const auto blocks = static_cast<unsigned>((args.tokens + kRouteWarps - 1) / kRouteWarps);
  const size_t bytes = sizeof(float) * kRouteWarps * static_cast<size_t>(args.experts);
  dispatch(dtype, [&]<typename T>() {
    if (args.gradient == nullptr)
      route_kernel<T><<<blocks, 32 * kRouteWarps, bytes, stream>>>(args);
    else
      route_backward_kernel<T><<<blocks, 32 * kRouteWarps, bytes, stream>>>(args);
  });
}

void launch_group_pairs(const GroupPairsArgs& args, cudaStream_t stream) {
  group_pairs_kernel<<<static_cast<unsigned>(args.experts), kGroupThreads, 0, stream>>>(args);
}

}  // namespace fastsft::cuda
