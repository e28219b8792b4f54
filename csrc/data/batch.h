#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// A HostBatch on the device of the model. The sizes are the host's: asking for one never waits.
struct Batch {
  at::Tensor input_ids;        // [tokens] int64
  at::Tensor positions;        // [tokens] int32
  at::Tensor cu_seqlens;       // [conversations + 1] int32
  at::Tensor label_positions;  // [labels] int64
  at::Tensor targets;          // [labels] int64
  at::Tensor token_weights;    // [labels] float32
  int64_t max_seqlen = 0;      // the longest conversation

  int64_t num_tokens() const { return input_ids.size(0); }
  int64_t num_labels() const { return label_positions.size(0); }
};

}  // namespace fastsft
