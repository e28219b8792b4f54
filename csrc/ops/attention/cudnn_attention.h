#pragma once

#include <ATen/core/Tensor.h>

#include "ops/attention/attention_choice.h"

namespace fastsft::cuda {

class CudnnPlans;

// cuDNN's plans for the rows `qkv` of such conversations, compiled at the first call for each shape
// (seconds). Null where it has none, where their scratch is above
// `cudnn_workspace_limit`, and where deterministic algorithms are asked for: cuDNN's scratch is
// then as if all conversations were the longest.
const CudnnPlans* cudnn_plans(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                              const AttentionShape& shape);

// ops/attention/attention.h by `plans`, but for lse, whose memory is [tokens, num_heads]. `out` and
// `grad_qkv` are written in place.
void cudnn_attention(const CudnnPlans& plans, const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const at::Tensor& out, const at::Tensor& lse);
void cudnn_attention_backward(const CudnnPlans& plans, const at::Tensor& grad_out,
                              const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const at::Tensor& grad_qkv);

}  // namespace fastsft::cuda
