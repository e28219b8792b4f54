#pragma once

#include "model/decoder_block.h"
#include "model/masked_attention.h"

namespace fastsft {

// A block's attention between its projections: norms of query and key, rotary embedding, softmax.
// Of all activations it computes rows of all tokens together.
class BlockAttention {
 public:
  BlockAttention(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights)
      : context_(context), config_(context.config), refs_(refs), weights_(weights) {}

  // Fills attn_out and lse from qkv, which it rotates unless there are query and key norms. If the
  // context is shared, also heads_qkv and heads_out.
  void forward(const BlockActivations& a) const;
  // Fills grad_qkv from the gradient of attn_out.
  void backward(const BlockActivations& a, const at::Tensor& grad_attn_out,
                const at::Tensor& grad_qkv, UnitGradient* gradient) const;

 private:
  // Returns the heads that this rank computes.
  AttentionHeads heads() const;
  void exchanged_backward(const BlockActivations& a, const at::Tensor& grad_attn_out,
                          const at::Tensor& grad_qkv) const;
  at::Tensor rotated(const BlockActivations& a) const;
  void rotate(const at::Tensor& qkv, bool inverse) const;

  const BlockContext& context_;
  const ModelConfig& config_;
  const BlockRefs& refs_;
  const PlaceWeights& weights_;
};

}  // namespace fastsft
