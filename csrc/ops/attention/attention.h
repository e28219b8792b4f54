#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Causal attention over conversations laid end to end; nothing crosses a boundary.
//   qkv [tokens, (num_heads + 2 * num_key_value_heads) * head_dim]: query, key and value heads of
//   each token, rotated already; query head h reads key head h / (num_heads / num_key_value_heads).
//   cu_seqlens [conversations + 1] int32: begins with 0, ends with tokens, not decreasing.
//   out [tokens, num_heads * head_dim] = softmax(cap(scale * q k^T)) v, where cap(s) is s, or with
//   a `softcap` c > 0 it is c * tanh(s / c) window: token i sees token j of its conversation when i
//   - window < j <= i; 0: when j <= i. max_seqlen: no conversation is longer; 0 when it is not
//   known. CUDA shapes its grid by it and cannot read cu_seqlens without waiting for the device:
//   too small a value leaves tokens out. lse [num_heads, tokens] float32 = log of the sum of the
//   exponentials, for the backward pass.
//   use_cudnn: on a GPU by cuDNN where it takes the rows (cudnn_attention.h), in both passes alike;
//   what is in lse is then for that backward pass alone.
// float32, bfloat16 or float16; products and softmax in float32.
void attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
               int64_t num_key_value_heads, double scale, int64_t window, const at::Tensor& out,
               const at::Tensor& lse, int64_t max_seqlen = 0, double softcap = 0,
               bool use_cudnn = false);

// Overwrites grad_qkv, shaped like qkv. Deterministic: each key and value head is one task.
void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t num_heads,
                        int64_t num_key_value_heads, double scale, int64_t window,
                        const at::Tensor& grad_qkv, int64_t max_seqlen = 0, double softcap = 0,
                        bool use_cudnn = false);

void check_attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
                     int64_t num_key_value_heads, double scale, int64_t window,
                     const at::Tensor& out, const at::Tensor& lse, int64_t max_seqlen,
                     double softcap);
void check_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, int64_t num_heads,
                              int64_t num_key_value_heads, double scale, int64_t window,
                              const at::Tensor& grad_qkv, int64_t max_seqlen, double softcap);

}  // namespace fastsft
