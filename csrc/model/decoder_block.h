#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/rope_table.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// The activations that a block's forward keeps for its backward. Backward recomputes the norm
// outputs and the SwiGLU product unless `keep_norm_outputs`; with `recompute_gate_up` also the gate
// and up projections; and always the query and key norms.
struct BlockActivations {
  at::Tensor input;           // [tokens, hidden], the hidden states
  at::Tensor attn_norm_rstd;  // [tokens] float32
  at::Tensor qkv;             // [tokens, qkv_size], rotated; with qk_norm before norm and RoPE
  at::Tensor attn_out;        // [tokens, query_size]
  at::Tensor lse;             // [num_heads, tokens] float32
  at::Tensor attn_residual;   // [tokens, hidden], hidden states after attention
  at::Tensor mlp_norm_rstd;   // [tokens] float32
  at::Tensor gate_up;  // [tokens, 2 * intermediate]; backward overwrites it with its gradient
  at::Tensor attn_norm_out, mlp_norm_out;  // [tokens, hidden]; shared by all layers unless kept
  at::Tensor activated;  // [tokens, intermediate]; shared by all layers unless kept
  // Inputs of branch norms, [tokens, hidden], and their rstd; undefined in models without branch
  // norms.
  at::Tensor attention_branch = {}, attention_rstd = {}, mlp_branch = {}, mlp_rstd = {};
  // x A^T of each group's adapters, [tokens, ranks] (adapter_products.h); undefined without
  // adapters.
  at::Tensor qkv_adapters = {}, output_adapters = {}, gate_up_adapters = {}, down_adapters = {};
};

// The inputs that all blocks share in a micro-batch.
struct BlockContext {
  const ModelConfig& config;
  const Batch& batch;
  const RopeTables& rope;
  ActivationBuffers& buffers;
  bool keep_norm_outputs;
  AdapterDropout dropout;
  bool recompute_gate_up;  // all layers share a gate_up buffer, which backward fills again
};

// Computes pre-norm attention and a SwiGLU MLP, with biases after the GEMMs if the model has them:
//   attn_residual = input + attention(rope(qk_norm(rms_norm(input) Wqkv^T))) Wo^T
//   out    = attn_residual + swiglu(rms_norm(attn_residual) Wgu^T) Wd^T
// With branch norms, the outputs of attention and MLP are normalized before they are added. The
// output from a linear's adapters is added to its x W^T. Activations go into the layer's buffers.
BlockActivations block_forward(const BlockContext& context, const BlockRefs& refs,
                               const PlaceWeights& weights, const at::Tensor& input,
                               const at::Tensor& out, int64_t layer);

// Turns `grad` [tokens, hidden] from d loss / d out into d loss / d input, and adds weight
// gradients to the unit's flat gradient, which is null if nothing in the block is trained. With
// `stops`, the gradient of the input is not needed, and `grad` is undefined afterwards.
void block_backward(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights,
                    const BlockActivations& saved, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops);

}  // namespace fastsft
