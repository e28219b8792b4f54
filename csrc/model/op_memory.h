#pragma once

#include <c10/core/ScalarType.h>

#include "model/adapter_layout.h"
#include "model/config.h"

namespace fastsft {

// The sizes that determine a micro-batch's memory.
struct MicroBatchSize {
  int64_t tokens = 0;
  int64_t labels = 0;   // tokens with a loss
  int64_t longest = 0;  // tokens of the longest conversation
  // Tokens of all context ranks together, which attention reads; 0: `tokens` are the whole
  // micro-batch.
  int64_t context_tokens = 0;

  int64_t attended() const { return context_tokens > 0 ? context_tokens : tokens; }
};

// Returns the scratch memory for CPU ops, in float32 elements (ops/cpu/scratch.h). `tile_rows`:
// tokens for which a block's linears compute at once.
int64_t plan_scratch(const ModelConfig& config, c10::ScalarType dtype, const MicroBatchSize& shape,
                     int64_t tile_rows, int64_t threads, const AdapterSizes& adapters, bool fp8,
                     bool fp8_wgrad);

// Returns the bytes that attention on the CPU allocates over all threads, without torch's
// allocator.
int64_t plan_attention_tiles(const ModelConfig& config, const MicroBatchSize& shape,
                             int64_t threads);

// Memory options of library attention on a GPU. `deterministic`: blocks that share queries add to
// separate copies of the query gradient, enough copies for every multiprocessor. `use_cudnn`: count
// cuDNN's scratch, too; flash attention computes the rows that cuDNN does not support.
struct LibraryOptions {
  bool deterministic = false;
  bool use_cudnn = false;
};
// `config`: with a context rank's heads if the context is shared (ContextHeads::of_rank).
int64_t plan_library_attention(const ModelConfig& config, c10::ScalarType dtype,
                               const MicroBatchSize& shape, const LibraryOptions& options);

}  // namespace fastsft
