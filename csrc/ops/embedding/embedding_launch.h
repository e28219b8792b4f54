#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// The formulas are in ops/embedding/embedding.h. An id outside [0, vocab) traps, and the stream
// reports a launch failure.
struct EmbeddingArgs {
  const void* weight;
  const int64_t* ids;
  void* out;
  int64_t tokens, vocab, hidden;
  int width;
};
void launch_embedding(const EmbeddingArgs& args, Dtype dtype, cudaStream_t stream);

// `sorted_ids` are the ids in increasing order, and `order` their tokens. Tokens with the same id
// keep their order (stable sort).
struct EmbeddingBackwardArgs {
  const void* grad_out;
  const int64_t* sorted_ids;
  const int64_t* order;
  float* grad_weight;
  int64_t tokens, vocab, hidden;
  int width;
};
void launch_embedding_backward(const EmbeddingBackwardArgs& args, Dtype dtype, cudaStream_t stream);

}  // namespace fastsft::cuda
