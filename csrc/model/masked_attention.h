#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"

namespace fastsft {

struct AttentionHeads {
  int64_t num_heads, num_key_value_heads;
  double scale;
  int64_t window;
  double softcap;  // 0: none
};

// Attention of a batch, with the layouts of ops/attention/attention.h: `qkv` to `out` and `lse`.
// Batches with masked keys (Batch::is_key) have no kernel: ATen's GEMMs compute them a block of
// queries at a time, on any device, with products and softmax in float32, and a query that sees no
// key gets zeros, as from torch's scaled_dot_product_attention. Deterministic.
void batch_attention(const at::Tensor& qkv, const Batch& batch, const AttentionHeads& heads,
                     bool use_cudnn, const at::Tensor& out, const at::Tensor& lse);

// Overwrites grad_qkv.
void batch_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse, const Batch& batch,
                              const AttentionHeads& heads, bool use_cudnn,
                              const at::Tensor& grad_qkv);

}  // namespace fastsft
