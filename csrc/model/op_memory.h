#pragma once

#include <c10/core/ScalarType.h>

#include "model/adapter_layout.h"
#include "model/config.h"

namespace fastsft {

// The sizes that a micro-batch's memory depends on.
struct MicroBatchSize {
  int64_t tokens = 0;
  int64_t labels = 0;   // tokens that carry a loss
  int64_t longest = 0;  // conversation
};

// float32 elements of the scratch that ops on the CPU compute in (ops/cpu/scratch.h).
int64_t plan_scratch(const ModelConfig& config, c10::ScalarType dtype, const MicroBatchSize& shape,
                     int64_t threads, const AdapterSizes& adapters = {});

// Bytes that attention on the CPU keeps in all threads together, not from torch's allocator.
int64_t plan_attention_tiles(const ModelConfig& config, const MicroBatchSize& shape,
                             int64_t threads);

// Bytes that attention of a library takes on a GPU while it runs, at the most: in flash's backward
// its gradients before they are copied, and the query's in float32, every conversation with up to a
// tile more. `deterministic`: blocks that share queries add to copies of that, of which there are
// enough for every multiprocessor. `use_cudnn`: or cuDNN's scratch; flash takes what it does not.
struct LibraryOptions {
  bool deterministic = false;
  bool use_cudnn = false;
};
int64_t plan_library_attention(const ModelConfig& config, c10::ScalarType dtype,
                               const MicroBatchSize& shape, const LibraryOptions& options);

}  // namespace fastsft
