#include "ops/attention/attention.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/attention/attention_choice.h"
#include "ops/attention/attention_launch.h"
#include "ops/attention/library_attention.h"
#include "ops/cuda/arguments.h"
#include "ops/schema.h"

namespace fastsft {
namespace {

// Returns the caller's bound for the conversation lengths, or the token count if there is none.
int64_t longest(const at::Tensor& qkv, int64_t max_seqlen) {
  return max_seqlen == 0 ? qkv.size(0) : max_seqlen;
}

int64_t head_dim_of(const at::Tensor& qkv, int64_t num_heads, int64_t num_key_value_heads) {
  return qkv.size(1) / (num_heads + 2 * num_key_value_heads);
}

// Returns the lists for cuDNN, which must be on the device of `qkv`.
const at::Tensor& lists_for(const at::Tensor& qkv, const std::optional<at::Tensor>& cudnn_lists) {
  TORCH_CHECK_VALUE(cudnn_lists, "attention: cudnn_shapes needs cudnn_lists");
  check_tensors("attention", {{"qkv", qkv}, {"cudnn_lists", *cudnn_lists}});
  return *cudnn_lists;
}

bool use_flash(const at::Tensor& qkv, int64_t head_dim, double softcap) {
  int capability = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, qkv.device().index()));
  const auto choice = cuda::choose_attention(cuda::dtype_of(qkv), head_dim, cuda::alignment_of(qkv),
                                             capability, softcap > 0);
  return choice == cuda::AttentionKernel::kFlash;
}

cuda::AttentionArgs tiled_args(const at::Tensor& qkv, const at::Tensor& cu_seqlens,
                               int64_t num_heads, int64_t num_key_value_heads, double scale,
                               int64_t window, int64_t max_seqlen, double softcap) {
  const int64_t head_dim = head_dim_of(qkv, num_heads, num_key_value_heads);
  TORCH_CHECK_VALUE(head_dim <= cuda::kTiledMaxHeadDim, "attention: head_dim is ", head_dim,
                    ", the CUDA kernels take at most ", cuda::kTiledMaxHeadDim);
  const int64_t conversations = cu_seqlens.size(0) - 1;
  TORCH_CHECK_VALUE(conversations <= cuda::kTiledMaxConversations, "attention: ", conversations,
                    " conversations, the CUDA kernels take at most ", cuda::kTiledMaxConversations,
                    " in one call; use smaller micro-batches");
  return {.qkv = qkv.data_ptr(),
          .cu_seqlens = cu_seqlens.data_ptr<int32_t>(),
          .tokens = qkv.size(0),
          .max_seqlen = longest(qkv, max_seqlen),
          .conversations = static_cast<int>(conversations),
          .num_heads = static_cast<int>(num_heads),
          .num_key_value_heads = static_cast<int>(num_key_value_heads),
          .head_dim = static_cast<int>(head_dim),
          .scale = static_cast<float>(scale),
          .window = window,
          .softcap = static_cast<float>(softcap)};
}

void attention_cuda(const at::Tensor& qkv, const at::Tensor& cu_seqlens, int64_t num_heads,
                    int64_t num_key_value_heads, double scale, int64_t window,
                    const at::Tensor& out, const at::Tensor& lse, int64_t max_seqlen,
                    double softcap, const std::optional<at::Tensor>& cudnn_lists,
                    at::IntArrayRef cudnn_shapes) {
  check_attention(qkv, cu_seqlens, num_heads, num_key_value_heads, scale, window, out, lse,
                  max_seqlen, softcap);
  if (qkv.size(0) == 0) return;
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (use_flash(qkv, head_dim_of(qkv, num_heads, num_key_value_heads), softcap)) {
    const cuda::AttentionShape shape{num_heads, num_key_value_heads, scale, window,
                                     longest(qkv, max_seqlen)};
    const auto plans = cuda::cudnn_plans(qkv, cudnn_shapes, shape);
    if (!plans.empty()) {
      return cuda::cudnn_attention(plans, qkv, lists_for(qkv, cudnn_lists), out, lse);
    }
    return cuda::flash_attention(qkv, cu_seqlens, shape, out, lse);
  }
  cuda::launch_attention(tiled_args(qkv, cu_seqlens, num_heads, num_key_value_heads, scale, window,
                                    max_seqlen, softcap),
                         out.data_ptr(), lse.data_ptr<float>(), cuda::dtype_of(qkv),
                         c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void attention_backward_cuda(const at::Tensor& grad_out, const at::Tensor& qkv,
                             const at::Tensor& out, const at::Tensor& lse,
                             const at::Tensor& cu_seqlens, int64_t num_heads,
                             int64_t num_key_value_heads, double scale, int64_t window,
                             const at::Tensor& grad_qkv, int64_t max_seqlen, double softcap,
                             const std::optional<at::Tensor>& cudnn_lists,
                             at::IntArrayRef cudnn_shapes) {
  check_attention_backward(grad_out, qkv, out, lse, cu_seqlens, num_heads, num_key_value_heads,
                           scale, window, grad_qkv, max_seqlen, softcap);
  if (qkv.size(0) == 0) return;
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (use_flash(qkv, head_dim_of(qkv, num_heads, num_key_value_heads), softcap)) {
    const cuda::AttentionShape shape{num_heads, num_key_value_heads, scale, window,
                                     longest(qkv, max_seqlen)};
    const auto plans = cuda::cudnn_plans(qkv, cudnn_shapes, shape);
    if (!plans.empty()) {
      return cuda::cudnn_attention_backward(plans, grad_out, qkv, out, lse,
                                            lists_for(qkv, cudnn_lists), grad_qkv);
    }
    return cuda::flash_attention_backward(grad_out, qkv, out, lse, cu_seqlens, shape, grad_qkv);
  }
  const at::Tensor delta = at::empty(lse.sizes(), lse.options());
  cuda::launch_attention_backward(
      {.forward = tiled_args(qkv, cu_seqlens, num_heads, num_key_value_heads, scale, window,
                             max_seqlen, softcap),
       .grad_out = grad_out.data_ptr(),
       .out = out.data_ptr(),
       .lse = lse.data_ptr<float>(),
       .delta = delta.data_ptr<float>(),
       .grad_qkv = grad_qkv.data_ptr()},
      cuda::dtype_of(qkv), c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void prepare_attention_cuda(const at::Tensor& like, int64_t num_heads, int64_t num_key_value_heads,
                            int64_t head_dim, double scale, at::IntArrayRef windows,
                            at::IntArrayRef cudnn_shapes) {
  check_prepare_attention(like, num_heads, num_key_value_heads, cudnn_shapes);
  const c10::cuda::CUDAGuard guard(like.device());
  for (const int64_t window : windows) {
    cuda::compile_cudnn_plans(like, head_dim, {num_heads, num_key_value_heads, scale, window, 0},
                              cudnn_shapes);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(fastsft, CUDA, m) {
  m.impl("attention", &attention_cuda);
  m.impl("attention_backward", &attention_backward_cuda);
  m.impl("prepare_attention", &prepare_attention_cuda);
}

}  // namespace fastsft
