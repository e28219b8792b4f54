#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"

namespace fastsft {

struct AttentionHeads {
  int64_t num_heads, num_key_value_heads;
  double scale;
  int64_t window;
  double softcap;  // 0: no limit
};

// Computes attention of a batch from `qkv` to `out` and `lse`, with the layouts of
// ops/attention/attention.h. No kernel supports batches with masked keys (Batch::is_key). For them
// ATen's GEMMs compute a block of queries at a time, on any device, with GEMMs and softmax in
// float32. A query that sees no key gets zeros, as in torch's scaled_dot_product_attention.
// Deterministic.
void batch_attention(const at::Tensor& qkv, const Batch& batch, const AttentionHeads& heads,
                     const at::Tensor& out, const at::Tensor& lse);

// Computes the gradient of `qkv` and overwrites grad_qkv.
void batch_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse, const Batch& batch,
                              const AttentionHeads& heads, const at::Tensor& grad_qkv);

}  // namespace fastsft
