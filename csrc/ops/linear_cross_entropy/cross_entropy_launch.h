#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Computes losses and gradients for `rows` rows of logits, `stride` elements apart
// (ops/linear_cross_entropy/linear_cross_entropy.h). Rows begin at 16-byte addresses.
struct CrossEntropyArgs {
  void* logits;
  const int64_t* targets;  // the kernel traps if a target is outside [0, vocab)
  const float* weights;
  double* losses;  // [rows]: weight times loss
  bool gradient;   // overwrite the logits with it
  int64_t rows, vocab, stride;
  float smoothing;
  float softcap;  // 0: no softcap
};
void launch_cross_entropy(const CrossEntropyArgs& args, Dtype dtype, cudaStream_t stream);

// Adds the sum of losses [count] to `total`, in a fixed order.
void launch_add_losses(const double* losses, int64_t count, double* total, cudaStream_t stream);

}  // namespace fastsft::cuda
