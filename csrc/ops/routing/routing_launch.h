#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/routing/routing.h. All tensors are contiguous.
struct RouteArgs {
  const void* logits;
  void* weights;          // null in the backward pass
  const float* gradient;  // of the weights; null in the forward pass
  void* grad_logits;
  int* chosen_experts;
  int64_t tokens;
  int experts, chosen;
  bool normalize;
};
void launch_route(const RouteArgs& args, Dtype dtype, cudaStream_t stream);

struct GroupPairsArgs {
  const int* chosen_experts;
  int *offsets, *pairs, *rows;
  int64_t count;  // number of pairs
  int64_t experts;
};
void launch_group_pairs(const GroupPairsArgs& args, cudaStream_t stream);

}  // namespace fastsft::cuda
