#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/rope_table.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// What a block's backward needs of its forward. Norm outputs and the SwiGLU product are made again
// unless `keep_products`; with `replay_gate_up` the gate and up projections too; the norms of query
// and key always.
struct BlockActivations {
  at::Tensor input;             // [tokens, hidden], the residual stream
  at::Tensor rstd1;             // [tokens] float32
  at::Tensor qkv;               // [tokens, qkv_size], rotated; with qk_norm as projected
  at::Tensor context;           // [tokens, query_size], attention's result
  at::Tensor lse;               // [num_heads, tokens] float32
  at::Tensor middle;            // [tokens, hidden], the stream between attention and MLP
  at::Tensor rstd2;             // [tokens] float32
  at::Tensor gate_up;           // [tokens, 2 * intermediate]; backward writes its gradient over it
  at::Tensor normed1, normed2;  // [tokens, hidden]; shared by all layers unless kept
  at::Tensor activated;         // [tokens, intermediate]; likewise
  // With branch norms: what they read, [tokens, hidden] and [tokens] float32; undefined without.
  at::Tensor attention_branch = {}, attention_rstd = {}, mlp_branch = {}, mlp_rstd = {};
  // [tokens, ranks] of the adapters of each group (adapter_products.h); undefined without them.
  at::Tensor qkv_adapters = {}, output_adapters = {}, gate_up_adapters = {}, down_adapters = {};
};

// What all blocks of a micro-batch share.
struct BlockContext {
  const ModelConfig& config;
  const Batch& batch;
  const RopeTables& rope;
  ActivationBuffers& buffers;
  bool keep_products;
  AdapterDropout dropout;
  bool use_cudnn;       // of attention
  bool replay_gate_up;  // one gate_up buffer for all layers, filled again in backward
};

// Pre-norm attention and SwiGLU MLP, with biases after the products where the model has them:
//   middle = input + attention(rope(qk_norm(rms_norm(input) Wqkv^T))) Wo^T
//   out    = middle + swiglu(rms_norm(middle) Wgu^T) Wd^T
// With branch norms, attention's and the MLP's result goes through one before it is added.
// Every product x W^T has its adapters added.
// The activations are in the buffers of `layer`.
BlockActivations block_forward(const BlockContext& context, const BlockRefs& refs,
                               const PlaceWeights& weights, const at::Tensor& input,
                               const at::Tensor& out, int64_t layer);

// `grad` [tokens, hidden] holds d loss / d out and becomes d loss / d input. Weight gradients go
// straight into the unit's flat gradient; null where nothing of the block is trained. With
// `stops`, nothing reads the gradient of the input, and `grad` becomes anything.
void block_backward(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights,
                    const BlockActivations& saved, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops);

}  // namespace fastsft
