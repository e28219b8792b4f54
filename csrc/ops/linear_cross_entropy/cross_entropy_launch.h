#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The losses of `rows` rows of float32 logits, `stride` elements apart, and their gradient
// (ops/linear_cross_entropy/linear_cross_entropy.h). Rows begin at 16-byte addresses.
struct CrossEntropyArgs {
  float* logits;
  const int64_t* targets;  // outside [0, vocab): the kernel traps
  const float* weights;
  double* losses;  // [rows]: weight times loss
  void* grad;      // null: none; float32: may be the logits; bfloat16: rows of the same stride
  int64_t rows, vocab, stride;
  float smoothing;
  float softcap;  // 0: none
};
void launch_cross_entropy(const CrossEntropyArgs& args, Dtype grad_dtype, cudaStream_t stream);

// total += the sum of losses [count], in a fixed order.
void launch_add_losses(const double* losses, int64_t count, double* total, cudaStream_t stream);

}  // namespace fastsft::cuda
