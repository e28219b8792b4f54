#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "data/attention_ranges.h"

namespace fastsft {

// Computes causal attention over packed conversations; tokens never attend across conversations.
//   qkv [tokens, (num_heads + 2 * num_key_value_heads) * head_dim]: each token's query, key
//   and value heads, after rotation. Query head h uses key head
//   h / (num_heads / num_key_value_heads).
//   cu_seqlens [conversations + 1] int32: starts with 0, ends with `tokens`, never decreases.
//   out [tokens, num_heads * head_dim] = softmax(cap(scale * q k^T)) v. cap(s) is s, or with a
//   `softcap` c > 0, c * tanh(s / c).
//   window: token i sees token j of its conversation if i - window < j <= i; 0: if j <= i.
//   max_seqlen: upper bound for the conversation lengths, or 0 if unknown. CUDA derives its grid
//   from the bound, since reading cu_seqlens would block the host. If the bound is too small,
//   tokens are skipped.
//   lse [num_heads, tokens] float32: log of the sum of exponentials, for the backward pass.
//   cudnn_shapes, cudnn_lists: the ranges of conversations that cuDNN computes on a GPU if it
//   supports all shapes (library_attention.h): [conversations, longest] of each, and their lists
//   (data/attention_ranges.h). Without them flash attention computes. Both passes must get the
//   same, because cuDNN's layout of lse differs.
// float32, bfloat16 or float16; products and softmax in float32.
void attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
               int64_t num_key_value_heads, double scale, int64_t window, const at::Tensor& out,
               const at::Tensor& lse, int64_t max_seqlen = 0, double softcap = 0,
               const std::optional<at::Tensor>& cudnn_lists = {},
               at::IntArrayRef cudnn_shapes = {});

// Overwrites grad_qkv, shaped like qkv. Deterministic: each key/value head is one task.
void attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                        const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t num_heads,
                        int64_t num_key_value_heads, double scale, int64_t window,
                        const at::Tensor& grad_qkv, int64_t max_seqlen = 0, double softcap = 0,
                        const std::optional<at::Tensor>& cudnn_lists = {},
                        at::IntArrayRef cudnn_shapes = {});

// Compiles cuDNN's attention for layers with these windows, which otherwise happens at the first
// use of a shape. Returns how many of the shapes cuDNN computes: none where another kernel computes
// attention. `like`: a tensor of qkv's device and dtype.
int64_t prepare_attention(const at::Tensor& like, int64_t num_heads, int64_t num_key_value_heads,
                          int64_t head_dim, double scale, at::IntArrayRef windows,
                          at::IntArrayRef cudnn_shapes);

// Returns the pairs of cudnn_shapes.
std::vector<PaddedShape> padded_shapes(at::IntArrayRef cudnn_shapes);

// The ranges that a call of attention gets for cuDNN.
struct CudnnArgs {
  const std::optional<at::Tensor>& lists;
  at::IntArrayRef shapes;
};
void check_attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
                     int64_t num_key_value_heads, double scale, int64_t window,
                     const at::Tensor& out, const at::Tensor& lse, int64_t max_seqlen,
                     double softcap, const CudnnArgs& cudnn);
void check_prepare_attention(const at::Tensor& like, int64_t num_heads, int64_t num_key_value_heads,
                             int64_t head_dim, at::IntArrayRef cudnn_shapes);
void check_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, int64_t num_heads,
                              int64_t num_key_value_heads, double scale, int64_t window,
                              const at::Tensor& grad_qkv, int64_t max_seqlen, double softcap,
                              const CudnnArgs& cudnn);

}  // namespace fastsft
