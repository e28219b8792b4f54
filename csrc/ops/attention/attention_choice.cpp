#include "ops/attention/attention_choice.h"

namespace fastsft::cuda {

AttentionKernel choose_attention(Dtype dtype, int64_t head_dim, uint64_t alignment,
                                 int capability) {
  const bool flash = dtype == Dtype::kBFloat16 && capability >= 8 && head_dim % 8 == 0 &&
                     head_dim <= 256 && alignment >= 16;
  return flash ? AttentionKernel::kFlash : AttentionKernel::kTiled;
}

int tiled_head_dim(int64_t head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

}  // namespace fastsft::cuda
