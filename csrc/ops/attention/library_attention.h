#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "data/attention_ranges.h"
#include "ops/attention/attention_choice.h"

namespace fastsft::cuda {

// The ops of attention.h with libtorch's FlashAttention-2: bfloat16 or float16, head
// sizes that are multiples of 8 up to 256. The backward pass is deterministic if
// torch.use_deterministic_algorithms is on.
void flash_attention(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                     const AttentionShape& shape, const at::Tensor& out, const at::Tensor& lse);
void flash_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                              const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& cu_seqlens, const AttentionShape& shape,
                              const at::Tensor& grad_qkv);

class CudnnPlan;

// cuDNN's plans for a range of conversations, forward and backward. The first call for a shape
// compiles them, which takes seconds.
struct CudnnPlans {
  const CudnnPlan *forward = nullptr, *backward = nullptr;
};
// Returns the plans of the micro-batch's ranges. `shapes`: [conversations, longest] of each.
// Returns none if flash attention must be used. Reasons: the device or cuDNN version is not known
// to be correct (`cudnn_is_right`); the scratch memory of a range would exceed
// `cudnn_workspace_limit`; cuDNN has no kernel (a warning says why); or deterministic algorithms
// are requested, for which cuDNN's scratch memory has no such bound. Both passes of a micro-batch
// get the same answer.
std::vector<CudnnPlans> cudnn_plans(const at::Tensor& qkv, at::IntArrayRef shapes,
                                    const AttentionShape& shape);
// Compiles a range's plans, whatever their scratch memory. Returns false if cuDNN has none.
// `like`: as in prepare_attention.
bool compile_cudnn_plans(const at::Tensor& like, int64_t head_dim, const AttentionShape& shape,
                         const PaddedShape& padded);

// Computes ops/attention/attention.h with cuDNN, except that lse is [tokens, num_heads]. Writes
// `out` and `grad_qkv` directly. `lists`: CudnnInputs::lists (data/attention_ranges.h).
void cudnn_attention(std::span<const CudnnPlans> plans, const at::Tensor& qkv,
                     const at::Tensor& lists, const at::Tensor& out, const at::Tensor& lse);
void cudnn_attention_backward(std::span<const CudnnPlans> plans, const at::Tensor& grad_out,
                              const at::Tensor& qkv, const at::Tensor& out, const at::Tensor& lse,
                              const at::Tensor& lists, const at::Tensor& grad_qkv);

}  // namespace fastsft::cuda
