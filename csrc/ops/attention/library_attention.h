#pragma once

#include <ATen/core/Tensor.h>

#include "ops/attention/attention_choice.h"

namespace fastsft::cuda {

// ops/attention/attention.h by FlashAttention-2 of libtorch: bfloat16 or float16, head sizes that
// are multiples of 8 up to 256. The backward pass is deterministic when
// torch.use_deterministic_algorithms asks for it.
void flash_attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const AttentionShape& shape, const at::Tensor& out, const at::Tensor& lse);
void flash_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const AttentionShape& shape,
                              const at::Tensor& grad_qkv);

class CudnnPlan;

// cuDNN's plans of both passes for rows `qkv` of such conversations, compiled at the first call for
// each shape (seconds).
struct CudnnPlans {
  const CudnnPlan *forward = nullptr, *backward = nullptr;
  explicit operator bool() const { return forward != nullptr && backward != nullptr; }
};
// None where flash attention is to compute: on a device or with a cuDNN that is not known to be
// right (`cudnn_is_right`), above `cudnn_workspace_limit`, where cuDNN has no kernel (a warning
// says why), and where deterministic algorithms are asked for: cuDNN's scratch is then as if all
// conversations were the longest. The same for both passes of a micro-batch.
CudnnPlans cudnn_plans(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                       const AttentionShape& shape);

// ops/attention/attention.h by plans, but for lse, whose memory is [tokens, num_heads]. `out` and
// `grad_qkv` are written in place.
void cudnn_attention(const CudnnPlan& forward, const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const at::Tensor& out, const at::Tensor& lse);
void cudnn_attention_backward(const CudnnPlan& backward, const at::Tensor& grad_out,
                              const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const at::Tensor& grad_qkv);

}  // namespace fastsft::cuda
