#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fastsft {

// A HostBatch on the device of the model. The sizes are the host's: asking for one never waits.
struct Batch {
  at::Tensor input_ids;        // [tokens] int64
  at::Tensor positions;        // [tokens] int32
  at::Tensor cu_seqlens;       // [conversations + 1] int32
  at::Tensor is_key;           // [tokens] uint8, or [0] where all are keys
  at::Tensor token_keys;       // [tokens] int32, or [0] where nobody asked for them
  at::Tensor label_positions;  // [labels] int64
  at::Tensor targets;          // [labels] int64
  at::Tensor token_weights;    // [labels] float32
  int64_t max_seqlen = 0;      // the longest conversation
  int64_t num_positions = 0;   // every position is below this
  // cu_seqlens on the host, where `is_key` has entries.
  std::vector<int32_t> boundaries;

  int64_t num_tokens() const { return input_ids.size(0); }
  bool has_masked_keys() const { return !boundaries.empty(); }
  int64_t num_labels() const { return label_positions.size(0); }
};

}  // namespace fastsft
