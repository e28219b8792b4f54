#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "data/batch.h"
#include "model/activation_buffers.h"
#include "model/block_activations.h"
#include "model/config.h"
#include "model/fp8_products.h"
#include "model/head_exchange.h"
#include "model/layout.h"
#include "model/rope_table.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// The inputs that all blocks share in a micro-batch.
struct BlockContext {
  const ModelConfig& config;
  const Batch& batch;
  const RopeTables& rope;
  ActivationBuffers& buffers;
  Recompute recompute;
  AdapterDropout dropout;
  // The most rows that norms, linears and the MLP compute at once; 0: all. Weight gradients are
  // sums over the tiles.
  int64_t tile_tokens = 0;
  Fp8Recipe fp8 = {};                         // of the blocks in 8 bits
  std::optional<HeadExchange> exchange = {};  // none: this rank has all tokens of the micro-batch
};

// Computes pre-norm attention and a SwiGLU MLP, with biases after the GEMMs if the model has them:
//   attn_residual = input + attention(rope(qk_norm(rms_norm(input) Wqkv^T))) Wo^T
//   out    = attn_residual + swiglu(rms_norm(attn_residual) Wgu^T) Wd^T
// With branch norms, the outputs of attention and MLP are normalized before they are added. The
// output from a linear's adapters is added to its x W^T. Activations go into the layer's buffers.
BlockActivations block_forward(const BlockContext& context, const BlockRefs& refs,
                               const PlaceWeights& weights, const at::Tensor& input,
                               const at::Tensor& out, int64_t layer);

// Computes again, from the input, what attention left for backward, under Recompute::kBlock. The
// MLP is computed again by block_backward, one tile after the other.
BlockActivations recompute_attention(const BlockContext& context, const BlockRefs& refs,
                                     const PlaceWeights& weights, const at::Tensor& input,
                                     int64_t layer);

// Turns `grad` [tokens, hidden] from d loss / d out into d loss / d input, and adds weight
// gradients to the unit's flat gradient, which is null if nothing in the block is trained. With
// `stops`, the input's gradient is not needed, and `grad` is undefined afterwards.
void block_backward(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights,
                    const BlockActivations& saved, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops);

}  // namespace fastsft
