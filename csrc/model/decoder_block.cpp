#include "model/decoder_block.h"

#include <ATen/ops/add.h>

#include "model/adapter_products.h"
#include "model/block_attention.h"
#include "model/linear_products.h"
#include "model/mixture_block.h"
#include "ops/bias/bias.h"
#include "ops/gemm/gemm.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/swiglu/swiglu.h"

namespace fastsft {
namespace {

// The forward and backward of a block for `rows` of the micro-batch: all rows, or for methods that
// compute each row by itself, a tile.
class Block {
 public:
  Block(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights,
        const Rows& rows)
      : context_(context),
        config_(context.config),
        refs_(refs),
        weights_(weights),
        inputs_(context, refs, weights),
        linears_(context, refs, weights),
        rows_(rows) {}

  // attn_out = attention(rope(rms_norm(input) Wqkv^T))
  void attention_forward(const BlockActivations& a) const {
    each_tile(a, [](const Block& tile, const BlockActivations& t) { tile.project(t); });
    BlockAttention(context_, refs_, weights_).forward(a);
  }

  void project(const BlockActivations& a) const {
    // 1. Norm: attn_norm_out = input * rstd * w
    const ProductInput normed = inputs_.norm(a.input, refs_.input_norm, a.attn_norm_out,
                                             a.attn_norm_rstd, keeps_for(refs_.qkv_adapters));
    // 2. Projections: qkv = attn_norm_out Wqkv^T + b, and adapters
    linears_.forward(normed, refs_.qkv, a.qkv);
    add(refs_.qkv_bias, a.qkv);
    adapt(refs_.qkv_adapters, a.attn_norm_out, a.qkv_adapters, a.qkv);
  }

  // out = attn_residual + swiglu(rms_norm(attn_residual) Wgu^T) Wd^T
  void mlp_forward(const BlockActivations& a, const at::Tensor& out) const {
    // 1. attn_residual = input + attn_out Wo^T, and its norm
    const ProductInput normed = add_attention(a, keeps_for(refs_.gate_up_adapters));
    if (refs_.router) return experts_forward(context_, refs_, weights_, a, out);
    // 2. gate_up = mlp_norm_out Wgu^T + b, and adapters
    linears_.forward(normed, refs_.gate_up, a.gate_up);
    add(refs_.gate_up_bias, a.gate_up);
    adapt(refs_.gate_up_adapters, a.mlp_norm_out, a.gate_up_adapters, a.gate_up);
    // 3. activated = silu(gate) * up
    const ProductInput activated =
        inputs_.swiglu(a.gate_up, a.activated, keeps_for(refs_.down_adapters));
    // 4. out = attn_residual + activated Wd^T + b, and adapters
    if (refs_.mlp_norm) {
      at::Tensor sum = out;
      at::add_out(sum, a.attn_residual, normed_mlp(a, activated));
      return;
    }
    if (refs_.down_bias) add(refs_.down_bias, out.copy_(a.attn_residual));
    linears_.forward_add(activated, refs_.down, refs_.down_bias ? out : a.attn_residual, out);
    adapt(refs_.down_adapters, a.activated, a.down_adapters, out);
  }

  // Replaces `grad`, which is d loss / d out, by d loss / d attn_residual.
  void mlp_backward(const BlockActivations& a, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops) const {
    if (refs_.router) {
      recompute_mlp_input(a);
      return experts_backward(context_, refs_, weights_, a, grad, gradient);
    }
    if (recomputes_gate_up()) recompute_mlp(a);
    // 1. Through the branch norm, if there is one
    const at::Tensor grad_down =
        branch_backward(refs_.mlp_norm, a.mlp_branch, a.mlp_rstd, grad, gradient);
    accumulate(gradient, refs_.down_bias, grad_down);
    // 2. Down projection and SwiGLU: grad_Wd = grad_down^T activated; gate_up becomes its gradient
    if (recomputes(refs_.down, refs_.down_adapters)) {
      linears_.backward(grad_down, refs_.down, a.activated);
      swiglu_backward(a.activated, a.gate_up, a.gate_up, /*recompute=*/true, config_.gelu);
      linears_.accumulate(gradient, refs_.down, grad_down, a.activated);
    } else {
      down_backward(a, grad_down, gradient);
    }
    accumulate(gradient, refs_.gate_up_bias, a.gate_up);
    // 3. Gate and up projection, and the norm before them
    norm_backward({a.attn_residual, a.mlp_norm_out, a.mlp_norm_rstd, a.gate_up_adapters,
                   recomputes_gate_up()},
                  refs_.post_norm, refs_.gate_up, refs_.gate_up_adapters, a.gate_up, grad, gradient,
                  stops);
  }

  // Computes the down projection's backward and overwrites gate_up with its gradient.
  void down_backward(const BlockActivations& a, const at::Tensor& grad,
                     UnitGradient* gradient) const {
    if (!keeps_norm_outputs() && !refs_.down_adapters.empty())
      swiglu(a.gate_up, a.activated, config_.gelu);
    linears_.accumulate(gradient, refs_.down, grad, a.activated);
    const at::Tensor grad_adapters =
        adapt_backward(refs_.down_adapters, a.activated, a.down_adapters, grad, gradient);
    linears_.backward(grad, refs_.down, a.activated);  // overwrites values that are used up
    adapter_input_backward(refs_.down_adapters, weights_, context_.dropout, grad_adapters,
                           a.activated);
    swiglu_backward(a.activated, a.gate_up, a.gate_up, /*recompute=*/false, config_.gelu);
  }

  // Replaces `grad`, which is d loss / d attn_residual, by d loss / d input.
  void attention_backward_into(const BlockActivations& a, const at::Tensor& grad,
                               UnitGradient* gradient, bool stops) const {
    const at::Tensor grad_attn_out = buffer(Buffer::kGradAttention);
    const at::Tensor grad_qkv = buffer(Buffer::kGradQkv);
    // 1. Output projection
    each_tile(a, [&](const Block& tile, const BlockActivations& t) {
      tile.output_backward(t, tile.rows().of(grad), tile.rows().of(grad_attn_out), gradient);
    });
    // 2. Attention and rotary embedding
    BlockAttention(context_, refs_, weights_).backward(a, grad_attn_out, grad_qkv, gradient);
    // 3. Projections of query, key and value, and the norm before them
    each_tile(a, [&](const Block& tile, const BlockActivations& t) {
      tile.project_backward(t, tile.rows().of(grad_qkv), tile.rows().of(grad), gradient, stops);
    });
  }

  // Calls `work(tile, activations)` for each tile.
  template <typename Work>
  void each_tile(const BlockActivations& a, const Work& work) const {
    for (const Rows& rows : tiles_of(rows_.count, context_.tile_tokens)) {
      BlockContext context = context_;
      context.dropout.token_keys = rows.of(context_.dropout.token_keys);
      work(Block(context, refs_, weights_, rows), rows_of(a, rows));
    }
  }
  const Rows& rows() const { return rows_; }

 private:
  at::Tensor buffer(Buffer name) const { return context_.buffers.get(name); }
  // Returns a buffer that has room for the rows of the largest tile.
  at::Tensor tile_buffer(Buffer name) const { return buffer(name).narrow(0, 0, rows_.count); }

  bool keeps_norm_outputs() const { return context_.recompute == Recompute::kNone; }
  bool recomputes_gate_up() const {
    return context_.recompute == Recompute::kGateUp || context_.recompute == Recompute::kBlock;
  }

  // grad_Wo = grad_output^T attn_out; grad_attn_out = grad_output Wo
  void output_backward(const BlockActivations& a, const at::Tensor& grad,
                       const at::Tensor& grad_attn_out, UnitGradient* gradient) const {
    const at::Tensor grad_output =
        branch_backward(refs_.attention_norm, a.attention_branch, a.attention_rstd, grad, gradient);
    linears_.accumulate(gradient, refs_.output, grad_output, a.attn_out);
    accumulate(gradient, refs_.output_bias, grad_output);
    const at::Tensor grad_adapters =
        adapt_backward(refs_.output_adapters, a.attn_out, a.output_adapters, grad_output, gradient);
    linears_.backward(grad_output, refs_.output, grad_attn_out);
    adapter_input_backward(refs_.output_adapters, weights_, context_.dropout, grad_adapters,
                           grad_attn_out);
  }

  void project_backward(const BlockActivations& a, const at::Tensor& grad_qkv,
                        const at::Tensor& grad, UnitGradient* gradient, bool stops) const {
    accumulate(gradient, refs_.qkv_bias, grad_qkv);
    norm_backward({a.input, a.attn_norm_out, a.attn_norm_rstd, a.qkv_adapters, false},
                  refs_.input_norm, refs_.qkv, refs_.qkv_adapters, grad_qkv, grad, gradient, stops);
  }

  at::Tensor weight(const ParamRef& ref) const { return ref.view(weights_); }
  // True if the preceding op recomputes the matrix's input in its own backward. Adapters read that
  // input earlier, so then it is false.
  bool recomputes(const ParamRef& matrix, const AdapterRefs& adapters) const {
    return !keeps_norm_outputs() && matrix.trained && adapters.empty();
  }
  // True if backward or adapters read a product's input after forward's product.
  bool keeps_for(const AdapterRefs& adapters) const {
    return keeps_norm_outputs() || !adapters.empty();
  }
  void norm(const at::Tensor& x, const ParamRef& ref, const at::Tensor& out,
            const at::Tensor& rstd) const {
    rms_norm(x, std::nullopt, weight(ref), config_.rms_norm_eps, std::nullopt, out, rstd,
             config_.norm_offset);
  }

  // Computes the hidden states after attention and their norm in one kernel.
  ProductInput add_attention(const BlockActivations& a, bool keep) const {
    return inputs_.norm(attention_result(a), a.input, refs_.post_norm, a.attn_residual,
                        a.mlp_norm_out, a.mlp_norm_rstd, keep);
  }

  // Returns attn_out Wo^T, the term that is added to the hidden states.
  at::Tensor attention_result(const BlockActivations& a) const {
    const at::Tensor projected = tile_buffer(Buffer::kProjected);
    const at::Tensor& product = refs_.attention_norm ? a.attention_branch : projected;
    linears_.forward(a.attn_out, refs_.output, product);
    add(refs_.output_bias, product);
    adapt(refs_.output_adapters, a.attn_out, a.output_adapters, product);
    if (refs_.attention_norm) norm(product, *refs_.attention_norm, projected, a.attention_rstd);
    return projected;
  }

  at::Tensor normed_mlp(const BlockActivations& a, const ProductInput& activated) const {
    const at::Tensor normed = tile_buffer(Buffer::kProjected);
    linears_.forward(activated, refs_.down, a.mlp_branch);
    add(refs_.down_bias, a.mlp_branch);
    adapt(refs_.down_adapters, a.activated, a.down_adapters, a.mlp_branch);
    norm(a.mlp_branch, *refs_.mlp_norm, normed, a.mlp_rstd);
    return normed;
  }

  // Returns the gradient for a branch's output, through the branch norm if there is one.
  at::Tensor branch_backward(const std::optional<ParamRef>& ref, const at::Tensor& branch,
                             const at::Tensor& rstd, const at::Tensor& grad,
                             UnitGradient* gradient) const {
    if (!ref) return grad;
    const at::Tensor grad_branch = tile_buffer(Buffer::kGradBranch);
    grad_branch.zero_();
    rms_norm_backward(grad, branch, weight(*ref), rstd, grad_branch, ref->gradient(gradient),
                      ref->begin_write(gradient), /*recompute=*/false, config_.norm_offset);
    return grad_branch;
  }

  // Computes again the norm before the MLP, and with kBlock also the hidden states that it reads.
  ProductInput recompute_mlp_input(const BlockActivations& a) const {
    if (context_.recompute == Recompute::kBlock) return add_attention(a, /*keep=*/true);
    if (keeps_norm_outputs()) return a.mlp_norm_out;
    return inputs_.norm(a.attn_residual, refs_.post_norm, a.mlp_norm_out, a.mlp_norm_rstd,
                        /*keep=*/true);
  }

  // Computes again what backward reads of the MLP's forward. The down projection is not among it,
  // unless its output is a norm's input.
  void recompute_mlp(const BlockActivations& a) const {
    const bool whole = context_.recompute == Recompute::kBlock;
    linears_.forward(recompute_mlp_input(a), refs_.gate_up, a.gate_up);
    add(refs_.gate_up_bias, a.gate_up);
    if (!whole)
      return add_adapters(refs_.gate_up_adapters, weights_, a.gate_up_adapters, a.gate_up);
    adapt(refs_.gate_up_adapters, a.mlp_norm_out, a.gate_up_adapters, a.gate_up);
    if (refs_.mlp_norm) {
      normed_mlp(a, inputs_.swiglu(a.gate_up, a.activated, keeps_for(refs_.down_adapters)));
    } else if (!refs_.down_adapters.empty()) {
      swiglu(a.gate_up, a.activated, config_.gelu);
      adapter_products(refs_.down_adapters, weights_, context_.dropout, a.activated,
                       a.down_adapters);
    }
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
    at::Tensor grad_products;
    if (!refs.empty())
      grad_products = packed_rows(buffer(Buffer::kGradAdapters), rows_.count, refs.a.rows);
    adapter_weights_backward(refs, weights_, context_.dropout, x, products, grad_y, grad_products,
                             gradient);
    return grad_products;
  }

  void add(const std::optional<ParamRef>& bias, const at::Tensor& x) const {
    if (bias) add_bias(x, weight(*bias));
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
    const at::Tensor grad_normed = tile_buffer(Buffer::kGradNormed);
    const bool passes = !stops || ref.trained;
    const bool recomputes_input = passes && !a.is_recomputed && recomputes(matrix, adapters);
    if (!recomputes_input) {
      if (!keeps_norm_outputs() && !a.is_recomputed && (matrix.trained || !adapters.empty()))
        norm(a.x, ref, a.normed, a.rstd);
      linears_.accumulate(gradient, matrix, grad_y, a.normed);
    }
    const at::Tensor grad_adapters =
        adapt_backward(adapters, a.normed, a.adapters, grad_y, gradient);
    if (!passes) return;
    linears_.backward(grad_y, matrix, grad_normed);
    adapter_input_backward(adapters, weights_, context_.dropout, grad_adapters, grad_normed);
    rms_norm_backward(grad_normed, a.x, weight(ref), a.rstd, grad, ref.gradient(gradient),
                      ref.begin_write(gradient), recomputes_input, config_.norm_offset);
    if (recomputes_input) linears_.accumulate(gradient, matrix, grad_y, grad_normed);
  }

  const BlockContext& context_;
  const ModelConfig& config_;
  const BlockRefs& refs_;
  const PlaceWeights& weights_;
  ProductInputs inputs_;
  LinearProducts linears_;
  Rows rows_;
};

}  // namespace

BlockActivations block_forward(const BlockContext& context, const BlockRefs& refs,
                               const PlaceWeights& weights, const at::Tensor& input,
                               const at::Tensor& out, int64_t layer) {
  const Block block(context, refs, weights, {0, input.size(0)});
  const BlockActivations saved =
      block_activations(context.buffers, context.config, refs, input, layer);
  block.attention_forward(saved);
  block.each_tile(saved, [&](const Block& tile, const BlockActivations& t) {
    tile.mlp_forward(t, tile.rows().of(out));
  });
  return saved;
}

BlockActivations recompute_attention(const BlockContext& context, const BlockRefs& refs,
                                     const PlaceWeights& weights, const at::Tensor& input,
                                     int64_t layer) {
  const Block block(context, refs, weights, {0, input.size(0)});
  const BlockActivations saved =
      block_activations(context.buffers, context.config, refs, input, layer);
  block.attention_forward(saved);
  return saved;
}

void block_backward(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights,
                    const BlockActivations& saved, const at::Tensor& grad, UnitGradient* gradient,
                    bool stops) {
  const Block block(context, refs, weights, {0, grad.size(0)});
  const bool through_attention = !stops || refs.trains_attention;
  block.each_tile(saved, [&](const Block& tile, const BlockActivations& t) {
    tile.mlp_backward(t, tile.rows().of(grad), gradient, !through_attention);
  });
  if (through_attention) block.attention_backward_into(saved, grad, gradient, stops);
  // Constant tensors in a trained group get a zero gradient.
  for (const ParamRef& ref : refs.held) ref.view(*gradient).zero_();
}

}  // namespace fastsft
