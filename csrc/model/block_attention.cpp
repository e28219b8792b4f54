#include "model/block_attention.h"

#include "ops/qk_norm/qk_norm.h"
#include "ops/rope/rope.h"

namespace fastsft {

using Columns = HeadExchange::Columns;

AttentionHeads BlockAttention::heads() const {
  AttentionHeads heads = {config_.num_heads, config_.num_key_value_heads, config_.attention_scale,
                          refs_.window, config_.attention_softcap};
  if (context_.exchange) {
    heads.num_heads = context_.exchange->heads().num_heads();
    heads.num_key_value_heads = context_.exchange->heads().num_key_value_heads();
  }
  return heads;
}

void BlockAttention::forward(const BlockActivations& a) const {
  // 1. Rotary embedding in place. If there are query and key norms, rotated() fills a buffer
  // instead, and backward fills that buffer again.
  if (!refs_.qk_norm) rotate(a.qkv, false);
  // 2. attn_out = softmax(q k^T * scale + mask) v, and its log-sum-exp for backward
  if (!context_.exchange) {
    return batch_attention(rotated(a), context_.batch, heads(), a.attn_out, a.lse);
  }
  const HeadExchange& exchange = *context_.exchange;
  exchange.to_heads(rotated(a), a.heads_qkv, Columns::kQkv, "queries, keys and values");
  batch_attention(a.heads_qkv, context_.batch, heads(), a.heads_out, a.lse);
  exchange.to_tokens(a.heads_out, a.attn_out, Columns::kQuery, "attention");
}

void BlockAttention::backward(const BlockActivations& a, const at::Tensor& grad_attn_out,
                              const at::Tensor& grad_qkv, UnitGradient* gradient) const {
  // 1. Attention and rotary embedding: a rotation's transpose has the negative angle
  const at::Tensor qkv = rotated(a);
  if (context_.exchange) {
    exchanged_backward(a, grad_attn_out, grad_qkv);
  } else {
    batch_attention_backward(grad_attn_out, qkv, a.attn_out, a.lse, context_.batch, heads(),
                             grad_qkv);
  }
  rotate(grad_qkv, true);
  // 2. Norms of query and key
  if (!refs_.qk_norm) return;
  const ParamRef& ref = *refs_.qk_norm;
  // rotated() wrote the heads' rstd.
  qk_norm_backward(grad_qkv, a.qkv, ref.view(weights_), context_.buffers.get(Buffer::kHeadRstd),
                   config_.num_heads, config_.num_key_value_heads, ref.gradient(gradient),
                   ref.begin_write(gradient), config_.norm_offset);
}

void BlockAttention::exchanged_backward(const BlockActivations& a, const at::Tensor& grad_attn_out,
                                        const at::Tensor& grad_qkv) const {
  const HeadExchange& exchange = *context_.exchange;
  const at::Tensor grad_heads_out = context_.buffers.get(Buffer::kGradHeadsOut);
  const at::Tensor grad_heads_qkv = context_.buffers.get(Buffer::kGradHeadsQkv);
  exchange.to_heads(grad_attn_out, grad_heads_out, Columns::kQuery, "gradient of attention");
  batch_attention_backward(grad_heads_out, a.heads_qkv, a.heads_out, a.lse, context_.batch, heads(),
                           grad_heads_qkv);
  exchange.to_tokens(grad_heads_qkv, grad_qkv, Columns::kQkv,
                     "gradient of queries, keys and values");
}

// Returns the input of attention. Query and key norms cannot be undone, so in models with them the
// projections are saved, and backward calls this function again.
at::Tensor BlockAttention::rotated(const BlockActivations& a) const {
  if (!refs_.qk_norm) return a.qkv;
  const at::Tensor result = context_.buffers.get(Buffer::kRotated);
  qk_norm(a.qkv, refs_.qk_norm->view(weights_), config_.num_heads, config_.num_key_value_heads,
          config_.rms_norm_eps, result, context_.buffers.get(Buffer::kHeadRstd),
          config_.norm_offset);
  rotate(result, false);
  return result;
}

void BlockAttention::rotate(const at::Tensor& qkv, bool inverse) const {
  const RopeTable& table = context_.rope.of(refs_.window);
  rope(qkv, table.cos, table.sin, context_.batch.positions,
       config_.num_heads + config_.num_key_value_heads, inverse);
}

}  // namespace fastsft
