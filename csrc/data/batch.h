#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fastsft {

// A HostBatch on the model's device. The sizes are known on the host, so reading them never waits
// for the device.
struct Batch {
  at::Tensor input_ids;               // [tokens] int64
  at::Tensor positions;               // [tokens] int32
  at::Tensor cu_seqlens;              // [conversations + 1] int32
  at::Tensor is_key;                  // [tokens] uint8, or [0] if all tokens are keys
  at::Tensor token_keys;              // [tokens] int32, or [0] if BatchRules::token_keys is off
  at::Tensor label_positions;         // [labels] int64
  at::Tensor targets;                 // [labels] int64
  at::Tensor token_weights;           // [labels] float32
  at::Tensor cudnn_lists;             // int32, CudnnInputs::lists; [0] without cuDNN
  int64_t max_seqlen = 0;             // tokens in the longest conversation
  int64_t num_positions = 0;          // largest position + 1
  bool is_slice = false;              // as in HostBatch
  std::vector<int32_t> boundaries;    // cu_seqlens on the host
  std::vector<int64_t> cudnn_shapes;  // CudnnInputs::shapes

  int64_t num_tokens() const { return input_ids.size(0); }
  // Returns how many tokens attention reads: in a slice, the whole micro-batch's.
  int64_t num_attended() const { return boundaries.empty() ? 0 : boundaries.back(); }
  bool has_masked_keys() const { return is_key.size(0) > 0; }
  int64_t num_labels() const { return label_positions.size(0); }
};

}  // namespace fastsft
