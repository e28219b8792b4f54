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

// Attention as ops/attention/attention.h has it, of a batch some of whose tokens are keys for no
// query (Batch::is_key); a query that sees no key gets zeros, as from torch's scaled dot product.
// Made of ATen's products a block of queries at a time, on any device: for the few rows that no
// kernel here computes. Deterministic; products and softmax in float32.
void masked_attention(const at::Tensor& qkv, const Batch& batch, const AttentionHeads& heads,
                      const at::Tensor& out, const at::Tensor& lse);

// Overwrites grad_qkv.
void masked_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                               const at::Tensor& out, const at::Tensor& lse, const Batch& batch,
                               const AttentionHeads& heads, const at::Tensor& grad_qkv);

}  // namespace fastsft
