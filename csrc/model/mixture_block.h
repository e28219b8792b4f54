#pragma once

#include "model/decoder_block.h"

namespace fastsft {

// The MLP half of a block whose MLP is a mixture of experts (mixture.h).

// Computes `out` from the norm's output and attn_residual.
void experts_forward(const BlockContext& context, const BlockRefs& refs,
                     const PlaceWeights& weights, const BlockActivations& a, const at::Tensor& out);

// Replaces `grad`, which is d loss / d out, by d loss / d attn_residual. a.mlp_norm_out is the
// norm's output; what else the recompute policy left out is computed again. `gradient` is null if
// nothing of the block is trained.
void experts_backward(const BlockContext& context, const BlockRefs& refs,
                      const PlaceWeights& weights, const BlockActivations& a,
                      const at::Tensor& grad, UnitGradient* gradient);

}  // namespace fastsft
