#include "model/decoder_block.h"

#include <algorithm>
#include <cmath>

#include "model/masked_attention.h"
#include "ops/attention/attention.h"
#include "ops/bias/bias.h"
#include "ops/gemm/gemm.h"
#include "ops/qk_norm/qk_norm.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace fastsft {
namespace {

class Block {
 public:
  Block(const BlockContext& context, const BlockRefs& refs, const at::Tensor& weights)
      : context_(context), config_(context.config), refs_(refs), weights_(weights) {}

  at::Tensor buffer(Buffer buffer, int64_t layer = 0) const {
    return context_.buffers.get(buffer, layer);
  }

  BlockActivations activations(const at::Tensor& input, int64_t layer) const {
    return {.input = input,
            .rstd1 = buffer(Buffer::kInputRstd, layer),
            .qkv = buffer(Buffer::kQkv, layer),
            .context = buffer(Buffer::kAttention, layer),
            .lse = buffer(Buffer::kLse, layer),
            .middle = buffer(Buffer::kMiddle, layer),
            .rstd2 = buffer(Buffer::kPostRstd, layer),
            .gate_up = buffer(Buffer::kGateUp, layer),
            .normed1 = buffer(Buffer::kInputNorm, layer),
            .normed2 = buffer(Buffer::kPostNorm, layer),
            .activated = buffer(Buffer::kActivated, layer)};
  }

  void attention_forward(const BlockActivations& a) const {
    rms_norm(a.input, std::nullopt, weight(refs_.input_norm), config_.rms_norm_eps, std::nullopt,
             a.normed1, a.rstd1);
    gemm(a.normed1, weight(refs_.qkv), a.qkv, false, true, 0.0);
    add(refs_.qkv_bias, a.qkv);
    if (!refs_.qk_norm) rotate(a.qkv, false);
    attend(rotated(a), a);
  }

  void mlp_forward(const BlockActivations& a, const at::Tensor& out) const {
    const at::Tensor projected = buffer(Buffer::kProjected);
    gemm(a.context, weight(refs_.output), projected, false, true, 0.0);
    add(refs_.output_bias, projected);
    rms_norm(projected, a.input, weight(refs_.post_norm), config_.rms_norm_eps, a.middle, a.normed2,
             a.rstd2);
    gemm(a.normed2, weight(refs_.gate_up), a.gate_up, false, true, 0.0);
    add(refs_.gate_up_bias, a.gate_up);
    swiglu(a.gate_up, a.activated);
    out.copy_(a.middle);
    add(refs_.down_bias, out);
    gemm(a.activated, weight(refs_.down), out, false, true, 1.0);
  }

  void mlp_backward(const BlockActivations& a, const at::Tensor& grad,
                    UnitGradient& gradient) const {
    if (context_.replay_gate_up) replay(a);
    if (!context_.keep_products) swiglu(a.gate_up, a.activated);
    accumulate(gradient, refs_.down, grad, a.activated);
    accumulate(gradient, refs_.down_bias, grad);
    const at::Tensor& grad_activated = a.activated;  // its values are used up
    gemm(grad, weight(refs_.down), grad_activated, false, false, 0.0);
    swiglu_backward(grad_activated, a.gate_up, a.gate_up);
    accumulate(gradient, refs_.gate_up_bias, a.gate_up);
    if (!context_.keep_products && !context_.replay_gate_up) norm_again(a);
    norm_backward(a.middle, a.normed2, a.rstd2, refs_.post_norm, refs_.gate_up, a.gate_up, grad,
                  gradient);
  }

  void attention_backward_into(const BlockActivations& a, const at::Tensor& grad,
                               UnitGradient& gradient) const {
    const at::Tensor grad_context = buffer(Buffer::kGradAttention);
    const at::Tensor grad_qkv = buffer(Buffer::kGradQkv);
    accumulate(gradient, refs_.output, grad, a.context);
    accumulate(gradient, refs_.output_bias, grad);
    gemm(grad, weight(refs_.output), grad_context, false, false, 0.0);
    attend_backward(grad_context, rotated(a), a, grad_qkv);
    rotate(grad_qkv, true);
    if (refs_.qk_norm) qk_norm_backward_into(a, grad_qkv, gradient);
    accumulate(gradient, refs_.qkv_bias, grad_qkv);
    if (!context_.keep_products)
      rms_norm(a.input, std::nullopt, weight(refs_.input_norm), config_.rms_norm_eps, std::nullopt,
               a.normed1, a.rstd1);
    norm_backward(a.input, a.normed1, a.rstd1, refs_.input_norm, refs_.qkv, grad_qkv, grad,
                  gradient);
  }

 private:
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(config_.head_dim)); }
  at::Tensor weight(const ParamRef& ref) const { return ref.view(weights_); }
  AttentionHeads heads() const {
    return {config_.num_heads, config_.num_key_value_heads, scale(), refs_.window};
  }

  void attend(const at::Tensor& qkv, const BlockActivations& a) const {
    const Batch& batch = context_.batch;
    if (batch.has_masked_keys()) return masked_attention(qkv, batch, heads(), a.context, a.lse);
    attention(qkv, batch.cu_seqlens, config_.num_heads, config_.num_key_value_heads, scale(),
              refs_.window, a.context, a.lse, batch.max_seqlen);
  }

  void attend_backward(const at::Tensor& grad, const at::Tensor& qkv, const BlockActivations& a,
                       const at::Tensor& grad_qkv) const {
    const Batch& batch = context_.batch;
    if (batch.has_masked_keys()) {
      return masked_attention_backward(grad, qkv, a.context, a.lse, batch, heads(), grad_qkv);
    }
    attention_backward(grad, qkv, a.context, a.lse, batch.cu_seqlens, config_.num_heads,
                       config_.num_key_value_heads, scale(), refs_.window, grad_qkv,
                       batch.max_seqlen);
  }

  void norm_again(const BlockActivations& a) const {
    rms_norm(a.middle, std::nullopt, weight(refs_.post_norm), config_.rms_norm_eps, std::nullopt,
             a.normed2, a.rstd2);
  }

  void replay(const BlockActivations& a) const {
    norm_again(a);
    gemm(a.normed2, weight(refs_.gate_up), a.gate_up, false, true, 0.0);
    add(refs_.gate_up_bias, a.gate_up);
  }

  void add(const std::optional<ParamRef>& bias, const at::Tensor& x) const {
    if (bias) add_bias(x, weight(*bias));
  }

  // What attention reads. The norms of query and key are not undone by the saved result, so with
  // them the projections are saved and this is made again in backward.
  at::Tensor rotated(const BlockActivations& a) const {
    if (!refs_.qk_norm) return a.qkv;
    const at::Tensor result = buffer(Buffer::kRotated);
    qk_norm(a.qkv, weight(*refs_.qk_norm), config_.num_heads, config_.num_key_value_heads,
            config_.rms_norm_eps, result, buffer(Buffer::kHeadRstd));
    rotate(result, false);
    return result;
  }

  // After rotated() of the same activations, which left the rstd of the heads.
  void qk_norm_backward_into(const BlockActivations& a, const at::Tensor& grad_qkv,
                             UnitGradient& gradient) const {
    const ParamRef& ref = *refs_.qk_norm;
    qk_norm_backward(grad_qkv, a.qkv, weight(ref), buffer(Buffer::kHeadRstd), config_.num_heads,
                     config_.num_key_value_heads, ref.view(gradient.flat()),
                     gradient.beta(ref.offset));
  }

  void rotate(const at::Tensor& qkv, bool inverse) const {
    rope(qkv, context_.rope.cos, context_.rope.sin, context_.batch.positions,
         config_.num_heads + config_.num_key_value_heads, inverse);
  }

  // The gradient of a weight used as y = x W^T.
  static void accumulate(UnitGradient& gradient, const ParamRef& ref, const at::Tensor& grad_y,
                         const at::Tensor& x) {
    gemm(grad_y, x, ref.view(gradient.flat()), true, false, gradient.beta(ref.offset));
  }

  static void accumulate(UnitGradient& gradient, const std::optional<ParamRef>& bias,
                         const at::Tensor& grad_y) {
    if (bias) bias_backward(grad_y, bias->view(gradient.flat()), gradient.beta(bias->offset));
  }

  // Through y = normed W^T and normed = rms_norm(x), adding to the stream's gradient.
  void norm_backward(const at::Tensor& x, const at::Tensor& normed, const at::Tensor& rstd,
                     const ParamRef& norm, const ParamRef& matrix, const at::Tensor& grad_y,
                     const at::Tensor& grad, UnitGradient& gradient) const {
    const at::Tensor grad_normed = buffer(Buffer::kGradNormed);
    accumulate(gradient, matrix, grad_y, normed);
    gemm(grad_y, weight(matrix), grad_normed, false, false, 0.0);
    rms_norm_backward(grad_normed, x, weight(norm), rstd, grad, norm.view(gradient.flat()),
                      gradient.beta(norm.offset));
  }

  const BlockContext& context_;
  const ModelConfig& config_;
  const BlockRefs& refs_;
  const at::Tensor& weights_;
};

}  // namespace

BlockActivations block_forward(const BlockContext& context, const BlockRefs& refs,
                               const at::Tensor& weights, const at::Tensor& input,
                               const at::Tensor& out, int64_t layer) {
  const Block block(context, refs, weights);
  const BlockActivations saved = block.activations(input, layer);
  block.attention_forward(saved);
  block.mlp_forward(saved, out);
  return saved;
}

void block_backward(const BlockContext& context, const BlockRefs& refs, const at::Tensor& weights,
                    const BlockActivations& saved, const at::Tensor& grad, UnitGradient& gradient) {
  const Block block(context, refs, weights);
  block.mlp_backward(saved, grad, gradient);
  block.attention_backward_into(saved, grad, gradient);
}

}  // namespace fastsft
