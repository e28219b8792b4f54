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

// Devices and releases (9.18.1 is 91801) whose backward pass over conversations laid end to end is
// not known to be wrong: that of sm_8x ignores strides, that of sm_12x gives wrong gradients, and
// before 9.18.1 Hopper's reads scratch that nothing wrote.
constexpr bool cudnn_is_right(int capability, int64_t version) {
  return (capability == 9 || capability == 10) && version >= 91801;
}

// Bytes of scratch of cuDNN's backward pass for each element of the queries: of every conversation
// as if it were the longest, or of every token where it is told their number. It is told where that
// is less, which with grouped heads it never is within the limit.
struct CudnnScratch {
  int64_t bytes = 0;
  bool by_tokens = false;
};
constexpr CudnnScratch cudnn_scratch(int64_t padded_tokens, int64_t tokens, bool grouped) {
  if (grouped) return {8 * padded_tokens, false};
  return padded_tokens <= 3 * tokens ? CudnnScratch{4 * padded_tokens, false}
                                     : CudnnScratch{12 * tokens, true};
}
// The most that it may take, in all: flash attention computes what is above. cuDNN asks for up to
// 0.4% more than the elements come to.
constexpr int64_t cudnn_workspace_limit(int64_t tokens, int64_t num_heads,
                                        int64_t num_key_value_heads, int64_t head_dim) {
  const int64_t elements = tokens * num_heads * head_dim;
  return (num_heads == num_key_value_heads ? 16 : 32) * (elements + elements / 100) + (1 << 20);
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
