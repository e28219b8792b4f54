#pragma once

#include <cstdint>

#include "ops/cuda/access.h"

namespace fastsft::cuda {

// What attention of a library is called with.
struct AttentionShape {
  int64_t num_heads, num_key_value_heads;
  double scale;
  int64_t window;  // 0: all
  int64_t max_seqlen;
};

enum class AttentionKernel {
  kFlash,  // FlashAttention-2, as it comes with libtorch, or cuDNN where that is asked for
  kTiled,  // our own: float32, soft caps, head sizes and addresses that flash does not take
};

// `alignment` is that of every row of qkv, in bytes; `capability` the device's major number.
inline AttentionKernel choose_attention(Dtype dtype, int64_t head_dim, uint64_t alignment,
                                        int capability, bool capped = false) {
  const bool flash = !capped && dtype != Dtype::kFloat && capability >= 8 && head_dim % 8 == 0 &&
                     head_dim <= 256 && alignment >= 16;
  return flash ? AttentionKernel::kFlash : AttentionKernel::kTiled;
}

// The most scratch that a backward pass of cuDNN may take, in bytes: four times the queries in
// float32, eight times where several of them share a key. It takes once them, or twice, where all
// conversations are about as long as the longest, and more where most are far shorter.
constexpr int64_t cudnn_workspace_limit(int64_t tokens, int64_t num_heads,
                                        int64_t num_key_value_heads, int64_t head_dim) {
  return (num_heads == num_key_value_heads ? 16 : 32) * tokens * num_heads * head_dim;
}

// The widest head of the tiled kernels.
inline constexpr int64_t kTiledMaxHeadDim = 256;
// Conversations of one launch: the y axis of its grid.
inline constexpr int64_t kTiledMaxConversations = 65535;
// Width that the tiled kernels compute a head with: 64, 128 or 256.
constexpr int tiled_head_dim(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
// Tokens of one tile at that width; keeps a block's shared memory below 99 KiB.
constexpr int tiled_rows(int padded_head_dim) { return padded_head_dim <= 128 ? 32 : 16; }

}  // namespace fastsft::cuda
