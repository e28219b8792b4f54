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

// float32 elements of the scratch that ops on the CPU compute in (ops/cpu/scratch.h).
int64_t plan_scratch(const ModelConfig& config, c10::ScalarType dtype, const MicroBatchShape& shape,
                     int64_t threads);

// Bytes that attention on the CPU keeps in all threads together, not from torch's allocator.
int64_t plan_attention_tiles(const ModelConfig& config, const MicroBatchShape& shape,
                             int64_t threads);

// Bytes that flash attention takes on a GPU while it runs, at the most: in backward its gradients
// before they are copied, and the query's in float32, every conversation with up to a tile more.
int64_t plan_flash_attention(const ModelConfig& config, c10::ScalarType dtype,
                             const MicroBatchShape& shape);

}  // namespace fastsft
