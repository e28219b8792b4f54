#pragma once

#include <c10/core/ScalarType.h>

#include "model/config.h"
#include "model/recompute.h"

namespace fastsft {

// The sizes that a micro-batch's memory depends on.
struct MicroBatchShape {
  int64_t tokens = 0;
  int64_t labels = 0;   // tokens that carry a loss
  int64_t longest = 0;  // conversation
};

// Bytes of the buffers of causal_lm.cpp and decoder_block.cpp for a training micro-batch.
struct ActivationBytes {
  int64_t kept = 0;    // of every layer, from forward to backward
  int64_t shared = 0;  // of the layer that is computed
  int64_t head = 0;    // of labelled tokens
  int64_t total() const { return kept + shared + head; }
};
ActivationBytes plan_activations(const ModelConfig& config, c10::ScalarType dtype,
                                 Recompute recompute, const MicroBatchShape& shape);

// What ops take beside those on the CPU, in bytes.
struct WorkspaceBytes {
  int64_t logits = 0;     // kept between steps
  int64_t in_head = 0;    // while the head computes
  int64_t in_blocks = 0;  // while a block computes
  int64_t attention = 0;  // of all threads, not from torch's allocator
};
WorkspaceBytes plan_workspaces(const ModelConfig& config, c10::ScalarType dtype,
                               const MicroBatchShape& shape, int64_t threads);

// The same on a GPU: the logits of a chunk, in bfloat16 their gradient beside them, and the losses.
int64_t plan_cuda_logits(const ModelConfig& config, c10::ScalarType dtype, int64_t labels);

}  // namespace fastsft
