#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/mixture.h"

namespace fastsft {

// The activations that a block's forward keeps for its backward. Backward recomputes the norm
// outputs and the SwiGLU product unless the policy is kNone; with kGateUp also the gate and up
// projections; with kBlock everything but the input; and always the query and key norms.
struct BlockActivations {
  at::Tensor input;           // [tokens, hidden], the hidden states
  at::Tensor attn_norm_rstd;  // [tokens] float32
  at::Tensor qkv;             // [tokens, qkv_size], rotated; with qk_norm before norm and RoPE
  at::Tensor attn_out;        // [tokens, query_size]
  at::Tensor lse;             // [num_heads, tokens] float32; of a context rank's heads and tokens
  at::Tensor attn_residual;   // [tokens, hidden], hidden states after attention
  at::Tensor mlp_norm_rstd;   // [tokens] float32
  // Four tensors with all tokens if they are kept, else with the rows of the largest tile.
  // gate_up [rows, 2 * intermediate]: backward overwrites it with its gradient.
  at::Tensor gate_up;
  at::Tensor attn_norm_out, mlp_norm_out;  // [rows, hidden]; shared by all layers unless kept
  at::Tensor activated;                    // [rows, intermediate]; shared by all layers unless kept
  // Attention of a context rank's heads for the tokens of all ranks, [context tokens, columns];
  // undefined unless the context is shared. Then nothing reads qkv after forward without qk_norm.
  at::Tensor heads_qkv = {}, heads_out = {};
  // Inputs of branch norms, [tokens, hidden], and their rstd; undefined in models without branch
  // norms.
  at::Tensor attention_branch = {}, attention_rstd = {}, mlp_branch = {}, mlp_rstd = {};
  MixtureActivations mixture = {};  // undefined tensors in models without experts
  // x A^T of each group's adapters, [tokens, ranks] (adapter_products.h); undefined without
  // adapters.
  at::Tensor qkv_adapters = {}, output_adapters = {}, gate_up_adapters = {}, down_adapters = {};
};

// Returns the layer's activations, which are views of its buffers, for the hidden states `input`.
BlockActivations block_activations(ActivationBuffers& buffers, const ModelConfig& config,
                                   const BlockRefs& refs, const at::Tensor& input, int64_t layer);

// A range of a micro-batch's tokens.
struct Rows {
  int64_t begin = 0, count = 0;

  at::Tensor of(const at::Tensor& whole) const {
    return whole.defined() ? whole.narrow(0, begin, count) : whole;
  }
};

// Divides `tokens` rows into the fewest tiles of at most `most` rows (0: any number), with nearly
// equal sizes, so that few sizes of GEMMs occur. Without tokens there is one empty tile, because an
// empty micro-batch has a gradient, too: zero.
std::vector<Rows> tiles_of(int64_t tokens, int64_t most);

// Returns a tile's activations.
BlockActivations rows_of(const BlockActivations& whole, const Rows& rows);

// Returns the first `rows` x `columns` elements of a buffer as a matrix. A buffer of adapters has
// room for the largest rank in any layer.
at::Tensor packed_rows(const at::Tensor& buffer, int64_t rows, int64_t columns);

}  // namespace fastsft
