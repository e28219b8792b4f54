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

}  // namespace fastsft::cuda
