#include "model/decoder_block.h"

#include <ATen/ops/add.h>

#include <algorithm>

#include "model/adapter_products.h"
#include "model/masked_attention.h"
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
  Block(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights)
      : context_(context), config_(context.config), refs_(refs), weights_(weights) {}

  at::Tensor buffer(Buffer buffer, int64_t layer = 0) const {
    return context_.buffers.get(buffer, layer);
  }

  BlockActivations activations(const at::Tensor& input, int64_t layer) const {
    return {
        .input = input,
        .attn_norm_rstd = buffer(Buffer::kInputRstd, layer),
        .qkv = buffer(Buffer::kQkv, layer),
        .attn_out = buffer(Buffer::kAttention, layer),
        .lse = buffer(Buffer::kLse, layer),
        .attn_residual = buffer(Buffer::kAttnResidual, layer),
        .mlp_norm_rstd = buffer(Buffer::kPostRstd, layer),
        .gate_up = buffer(Buffer::kGateUp, layer),
        .attn_norm_out = buffer(Buffer::kInputNorm, layer),
        .mlp_norm_out = buffer(Buffer::kPostNorm, layer),
        .activated = buffer(Buffer::kActivated, layer),
        .attention_branch = branch_buffer(Buffer::kAttentionBranch, layer),
        .attention_rstd = branch_buffer(Buffer::kAttentionRstd, layer),
        .mlp_branch = branch_buffer(Buffer::kMlpBranch, layer),
        .mlp_rstd = branch_buffer(Buffer::kMlpRstd, layer),
        .qkv_adapters = adapter_buffer(refs_.qkv_adapters, Buffer::kQkvAdapters, layer),
        .output_adapters = adapter_buffer(refs_.output_adapters, Buffer::kOutputAdapters, layer),
        .gate_up_adapters = adapter_buffer(refs_.gate_up_adapters, Buffer::kGateUpAdapters, layer),
        .down_adapters = adapter_buffer(refs_.down_adapters, Buffer::kDownAdapters, layer)};
  }

  // attn_out = attention(rope(rms_norm(input) Wqkv^T))
  void attention_forward(const BlockActivations& a) const {
    // 1. Norm: attn_norm_out = input * rstd * w
    norm(a.input, refs_.input_norm, a.attn_norm_out, a.attn_norm_rstd);
    // 2. Projections: qkv = attn_norm_out Wqkv^T + b, and adapters
    gemm(a.attn_norm_out, weight(refs_.qkv), a.qkv, false, true, 0.0);
    add(refs_.qkv_bias, a.qkv);
    adapt(refs_.qkv_adapters, a.attn_norm_out, a.qkv_adapters, a.qkv);
    // 3. Rotary embedding in place. If there are query and key norms, rotated() fills a buffer
    // instead, and backward fills that buffer again.
    if (!refs_.qk_norm) rotate(a.qkv, false);
    // 4. attn_out = softmax(q k^T * scale + mask) v, and its log-sum-exp for backward
    batch_attention(rotated(a), context_.batch, heads(), a.attn_out, a.lse);
  }

  // out = attn_residual + swiglu(rms_norm(attn_residual) Wgu^T) Wd^T
  void mlp_forward(const BlockActivations& a, const at::Tensor& out) const {
    // 1. attn_residual = input + attn_out Wo^T, and its norm in one kernel
    rms_norm(attention_result(a), a.input, weight(refs_.post_norm), config_.rms_norm_eps,
             a.attn_residual, a.mlp_norm_out, a.mlp_norm_rstd, config_.norm_offset);
    // 2. gate_up = mlp_norm_out Wgu^T + b, and adapters
    gemm(a.mlp_norm_out, weight(refs_.gate_up), a.gate_up, false, true, 0.0);
    add(refs_.gate_up_bias, a.gate_up);
    adapt(refs_.gate_up_adapters, a.mlp_norm_out, a.gate_up_adapters, a.gate_up);
    // 3. activated = silu(gate) * up
    swiglu(a.gate_up, a.activated, config_.gelu);
    // 4. out = attn_residual + activated Wd^T + b, and adapters
    if (refs_.mlp_norm) return add_normed_mlp(a, out);
    if (refs_.down_bias) {
      out.copy_(a.attn_residual);
      add(refs_.down_bias, out);
      gemm(a.activated, weight(refs_.down), out, false, true, 1.0);
    } else {
      gemm_add(a.activated, weight(refs_.down), a.attn_residual, out, false, true);
    }
    adapt(refs_.down_adapters, a.activated, a.down_adapters, out);
  }

  // Replaces `grad`, which is d loss / d out, by d loss / d attn_residual.
  void mlp_backward(const BlockActivations& a, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops) const {
    if (context_.recompute_gate_up) recompute_gate_up(a);
    // 1. Through the branch norm, if there is one
    const at::Tensor grad_down =
        branch_backward(refs_.mlp_norm, a.mlp_branch, a.mlp_rstd, grad, gradient);
    accumulate(gradient, refs_.down_bias, grad_down);
    // 2. Down projection and SwiGLU: grad_Wd = grad_down^T activated; gate_up becomes its gradient
    if (recomputes(refs_.down, refs_.down_adapters)) {
      gemm(grad_down, weight(refs_.down), a.activated, false, false, 0.0);
      swiglu_backward(a.activated, a.gate_up, a.gate_up, /*recompute=*/true, config_.gelu);
      accumulate(gradient, refs_.down, grad_down, a.activated);
    } else {
      down_backward(a, grad_down, gradient);
    }
    accumulate(gradient, refs_.gate_up_bias, a.gate_up);
    // 3. Gate and up projection, and the norm before them
    norm_backward({a.attn_residual, a.mlp_norm_out, a.mlp_norm_rstd, a.gate_up_adapters,
                   context_.recompute_gate_up},
                  refs_.post_norm, refs_.gate_up, refs_.gate_up_adapters, a.gate_up, grad, gradient,
                  stops);
  }

  // Computes the down projection's backward and overwrites gate_up with its gradient.
  void down_backward(const BlockActivations& a, const at::Tensor& grad,
                     UnitGradient* gradient) const {
    if (!context_.keep_norm_outputs && !refs_.down_adapters.empty())
      swiglu(a.gate_up, a.activated, config_.gelu);
    accumulate(gradient, refs_.down, grad, a.activated);
    const at::Tensor grad_adapters =
        adapt_backward(refs_.down_adapters, a.activated, a.down_adapters, grad, gradient);
    const at::Tensor& grad_activated = a.activated;  // overwrites values that are used up
    gemm(grad, weight(refs_.down), grad_activated, false, false, 0.0);
    adapter_input_backward(refs_.down_adapters, weights_, context_.dropout, grad_adapters,
                           grad_activated);
    swiglu_backward(grad_activated, a.gate_up, a.gate_up, /*recompute=*/false, config_.gelu);
  }

  // Replaces `grad`, which is d loss / d attn_residual, by d loss / d input.
  void attention_backward_into(const BlockActivations& a, const at::Tensor& grad,
                               UnitGradient* gradient, bool stops) const {
    const at::Tensor grad_attn_out = buffer(Buffer::kGradAttention);
    const at::Tensor grad_qkv = buffer(Buffer::kGradQkv);
    const at::Tensor grad_output =
        branch_backward(refs_.attention_norm, a.attention_branch, a.attention_rstd, grad, gradient);
    // 1. Output projection: grad_Wo = grad_output^T attn_out; grad_attn_out = grad_output Wo
    accumulate(gradient, refs_.output, grad_output, a.attn_out);
    accumulate(gradient, refs_.output_bias, grad_output);
    const at::Tensor grad_adapters =
        adapt_backward(refs_.output_adapters, a.attn_out, a.output_adapters, grad_output, gradient);
    gemm(grad_output, weight(refs_.output), grad_attn_out, false, false, 0.0);
    adapter_input_backward(refs_.output_adapters, weights_, context_.dropout, grad_adapters,
                           grad_attn_out);
    // 2. Attention and rotary embedding: the transpose of a rotation has the negative angle
    batch_attention_backward(grad_attn_out, rotated(a), a.attn_out, a.lse, context_.batch, heads(),
                             grad_qkv);
    rotate(grad_qkv, true);
    // 3. Norms of query and key
    if (refs_.qk_norm) {
      const ParamRef& ref = *refs_.qk_norm;
      // rotated() wrote the heads' rstd.
      qk_norm_backward(grad_qkv, a.qkv, weight(ref), buffer(Buffer::kHeadRstd), config_.num_heads,
                       config_.num_key_value_heads, ref.gradient(gradient),
                       ref.begin_write(gradient), config_.norm_offset);
    }
    // 4. Projections of query, key and value, and the norm before them
    accumulate(gradient, refs_.qkv_bias, grad_qkv);
    norm_backward({a.input, a.attn_norm_out, a.attn_norm_rstd, a.qkv_adapters, false},
                  refs_.input_norm, refs_.qkv, refs_.qkv_adapters, grad_qkv, grad, gradient, stops);
  }

 private:
  at::Tensor weight(const ParamRef& ref) const { return ref.view(weights_); }
  // True if the preceding op recomputes the matrix's input in its own backward. Adapters read that
  // input earlier, so then it is false.
  bool recomputes(const ParamRef& matrix, const AdapterRefs& adapters) const {
    return !context_.keep_norm_outputs && matrix.trained && adapters.empty();
  }
  AttentionHeads heads() const {
    return {config_.num_heads, config_.num_key_value_heads, config_.attention_scale, refs_.window,
            config_.attention_softcap};
  }

  void norm(const at::Tensor& x, const ParamRef& ref, const at::Tensor& out,
            const at::Tensor& rstd) const {
    rms_norm(x, std::nullopt, weight(ref), config_.rms_norm_eps, std::nullopt, out, rstd,
             config_.norm_offset);
  }

  // Returns attn_out Wo^T, the term that is added to the hidden states.
  at::Tensor attention_result(const BlockActivations& a) const {
    const at::Tensor projected = buffer(Buffer::kProjected);
    const at::Tensor& product = refs_.attention_norm ? a.attention_branch : projected;
    gemm(a.attn_out, weight(refs_.output), product, false, true, 0.0);
    add(refs_.output_bias, product);
    adapt(refs_.output_adapters, a.attn_out, a.output_adapters, product);
    if (refs_.attention_norm) norm(product, *refs_.attention_norm, projected, a.attention_rstd);
    return projected;
  }

  void add_normed_mlp(const BlockActivations& a, const at::Tensor& out) const {
    const at::Tensor normed = buffer(Buffer::kProjected);
    gemm(a.activated, weight(refs_.down), a.mlp_branch, false, true, 0.0);
    add(refs_.down_bias, a.mlp_branch);
    adapt(refs_.down_adapters, a.activated, a.down_adapters, a.mlp_branch);
    norm(a.mlp_branch, *refs_.mlp_norm, normed, a.mlp_rstd);
    at::Tensor sum = out;
    at::add_out(sum, a.attn_residual, normed);
  }

  // Returns the gradient for a branch's output, through the branch norm if there is one.
  at::Tensor branch_backward(const std::optional<ParamRef>& ref, const at::Tensor& branch,
                             const at::Tensor& rstd, const at::Tensor& grad,
                             UnitGradient* gradient) const {
    if (!ref) return grad;
    const at::Tensor grad_branch = buffer(Buffer::kGradBranch);
    grad_branch.zero_();
    rms_norm_backward(grad, branch, weight(*ref), rstd, grad_branch, ref->gradient(gradient),
                      ref->begin_write(gradient), /*recompute=*/false, config_.norm_offset);
    return grad_branch;
  }

  void recompute_gate_up(const BlockActivations& a) const {
    norm(a.attn_residual, refs_.post_norm, a.mlp_norm_out, a.mlp_norm_rstd);
    gemm(a.mlp_norm_out, weight(refs_.gate_up), a.gate_up, false, true, 0.0);
    add(refs_.gate_up_bias, a.gate_up);
    add_adapters(refs_.gate_up_adapters, weights_, a.gate_up_adapters, a.gate_up);
  }

  at::Tensor branch_buffer(Buffer name, int64_t layer) const {
    return config_.branch_norms ? buffer(name, layer) : at::Tensor();
  }

  // Returns the part [tokens, ranks] of a buffer that has room for the largest rank in any layer.
  at::Tensor adapter_buffer(const AdapterRefs& refs, Buffer name, int64_t layer) const {
    if (refs.empty()) return {};
    const at::Tensor whole = buffer(name, layer);
    const int64_t tokens = whole.size(0), ranks = refs.a.rows;
    if (whole.size(1) == ranks) return whole;
    return whole.view({-1}).narrow(0, 0, tokens * ranks).view({tokens, ranks});
  }

  void adapt(const AdapterRefs& refs, const at::Tensor& x, const at::Tensor& products,
             const at::Tensor& y) const {
    adapter_products(refs, weights_, context_.dropout, x, products);
    add_adapters(refs, weights_, products, y);
  }

  // Returns the gradient of x A^T, for adapter_input_backward.
  at::Tensor adapt_backward(const AdapterRefs& refs, const at::Tensor& x,
                            const at::Tensor& products, const at::Tensor& grad_y,
                            UnitGradient* gradient) const {
    const at::Tensor grad_products = adapter_buffer(refs, Buffer::kGradAdapters, 0);
    adapter_weights_backward(refs, weights_, context_.dropout, x, products, grad_y, grad_products,
                             gradient);
    return grad_products;
  }

  void add(const std::optional<ParamRef>& bias, const at::Tensor& x) const {
    if (bias) add_bias(x, weight(*bias));
  }

  // Returns the input of attention. Query and key norms cannot be undone, so in models with them
  // the projections are saved, and backward calls this function again.
  at::Tensor rotated(const BlockActivations& a) const {
    if (!refs_.qk_norm) return a.qkv;
    const at::Tensor result = buffer(Buffer::kRotated);
    qk_norm(a.qkv, weight(*refs_.qk_norm), config_.num_heads, config_.num_key_value_heads,
            config_.rms_norm_eps, result, buffer(Buffer::kHeadRstd), config_.norm_offset);
    rotate(result, false);
    return result;
  }

  void rotate(const at::Tensor& qkv, bool inverse) const {
    const RopeTable& table = context_.rope.of(refs_.window);
    rope(qkv, table.cos, table.sin, context_.batch.positions,
         config_.num_heads + config_.num_key_value_heads, inverse);
  }

  // Accumulates the gradient for a weight used as y = x W^T.
  static void accumulate(UnitGradient* gradient, const ParamRef& ref, const at::Tensor& grad_y,
                         const at::Tensor& x) {
    if (!ref.trained) return;
    gemm(grad_y, x, ref.view(*gradient), true, false, ref.begin_write(gradient));
  }

  static void accumulate(UnitGradient* gradient, const std::optional<ParamRef>& bias,
                         const at::Tensor& grad_y) {
    if (!bias || !bias->trained) return;
    bias_backward(grad_y, bias->view(*gradient), bias->begin_write(gradient));
  }

  // A norm's input and output.
  struct Normed {
    const at::Tensor &x, &normed, &rstd;
    const at::Tensor& adapters;  // normed A^T
    bool is_recomputed;          // `normed` was computed again in this backward
  };

  // Computes the backward of y = rms_norm(x) W^T. Adds to `grad`, the gradient of x, unless
  // `stops`.
  void norm_backward(const Normed& a, const ParamRef& ref, const ParamRef& matrix,
                     const AdapterRefs& adapters, const at::Tensor& grad_y, const at::Tensor& grad,
                     UnitGradient* gradient, bool stops) const {
    const at::Tensor grad_normed = buffer(Buffer::kGradNormed);
    const bool passes = !stops || ref.trained;
    const bool recomputes_input = passes && !a.is_recomputed && recomputes(matrix, adapters);
    if (!recomputes_input) {
      if (!context_.keep_norm_outputs && !a.is_recomputed && (matrix.trained || !adapters.empty()))
        norm(a.x, ref, a.normed, a.rstd);
      accumulate(gradient, matrix, grad_y, a.normed);
    }
    const at::Tensor grad_adapters =
        adapt_backward(adapters, a.normed, a.adapters, grad_y, gradient);
    if (!passes) return;
    gemm(grad_y, weight(matrix), grad_normed, false, false, 0.0);
    adapter_input_backward(adapters, weights_, context_.dropout, grad_adapters, grad_normed);
    rms_norm_backward(grad_normed, a.x, weight(ref), a.rstd, grad, ref.gradient(gradient),
                      ref.begin_write(gradient), recomputes_input, config_.norm_offset);
    if (recomputes_input) accumulate(gradient, matrix, grad_y, grad_normed);
  }

  const BlockContext& context_;
  const ModelConfig& config_;
  const BlockRefs& refs_;
  const PlaceWeights& weights_;
};

}  // namespace

BlockActivations block_forward(const BlockContext& context, const BlockRefs& refs,
                               const PlaceWeights& weights, const at::Tensor& input,
                               const at::Tensor& out, int64_t layer) {
  const Block block(context, refs, weights);
  const BlockActivations saved = block.activations(input, layer);
  block.attention_forward(saved);
  block.mlp_forward(saved, out);
  return saved;
}

void block_backward(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights,
                    const BlockActivations& saved, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops) {
  const Block block(context, refs, weights);
  const bool through_attention = !stops || refs.trains_attention;
  block.mlp_backward(saved, grad, gradient, !through_attention);
  if (through_attention) block.attention_backward_into(saved, grad, gradient, stops);
  // Constant tensors in a trained group get a zero gradient.
  for (const ParamRef& ref : refs.held) ref.view(*gradient).zero_();
}

}  // namespace fastsft
