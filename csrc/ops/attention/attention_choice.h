#pragma once

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// Arguments for a library's attention kernel.
struct AttentionShape {
  int64_t num_heads, num_key_value_heads;
  double scale;
  int64_t window;  // 0: unlimited
  int64_t max_seqlen;
};

enum class AttentionKernel {
  kFlash,  // libtorch's FlashAttention-2, or cuDNN if requested
  kTiled,  // our own kernel: float32, softcap, head sizes and alignments that flash rejects
};

// Chooses the kernel. `alignment` is the alignment of qkv's rows in bytes, `capability` the
// device's major version.
inline AttentionKernel choose_attention(Dtype dtype, int64_t head_dim, uint64_t alignment,
                                        int capability, bool capped = false) {
  const bool flash = !capped && dtype != Dtype::kFloat && capability >= 8 && head_dim % 8 == 0 &&
                     head_dim <= 256 && alignment >= 16;
  return flash ? AttentionKernel::kFlash : AttentionKernel::kTiled;
}

// Returns true if cuDNN is known to compute the backward pass of packed conversations correctly
// (9.18.1 is 91801). On sm_8x it ignores strides, on sm_12x its gradients are wrong, and on Hopper,
// versions before 9.18.1 read uninitialised scratch memory.
constexpr bool cudnn_is_right(int capability, int64_t version) {
  return (capability == 9 || capability == 10) && version >= 91801;
}

// Returns the scratch memory of cuDNN's backward pass in bytes per query element of a token, for
// `padded_tokens` = conversations * longest. cuDNN can also allocate it per token, but then it
// reads offsets with other factors, and with grouped heads that takes more.
constexpr int64_t cudnn_scratch(int64_t padded_tokens, bool grouped) {
  return (grouped ? 8 : 4) * padded_tokens;
}
// Returns the limit for cuDNN's scratch memory in bytes; above it, flash attention is used. cuDNN
// asks for up to 0.4% more than the formula.
constexpr int64_t cudnn_workspace_limit(int64_t tokens, int64_t num_heads,
                                        int64_t num_key_value_heads, int64_t head_dim) {
  const int64_t elements = tokens * num_heads * head_dim;
  return (num_heads == num_key_value_heads ? 16 : 32) * (elements + elements / 100) + (1 << 20);
}

// Largest head size for the tiled kernels.
inline constexpr int64_t kTiledMaxHeadDim = 256;
// Most conversations per launch, which are the grid's y axis.
inline constexpr int64_t kTiledMaxConversations = 65535;
// Returns the padded head size for the tiled kernels: 64, 128 or 256.
constexpr int tiled_head_dim(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
// Returns the tokens per tile for a padded head size. A block's shared memory stays below 99
// KiB.
constexpr int tiled_rows(int padded_head_dim) { return padded_head_dim <= 128 ? 32 : 16; }

}  // namespace fastsft::cuda
