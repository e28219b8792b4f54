#include "model/mixture_block.h"

#include <optional>

#include "ops/rms_norm/rms_norm.h"

namespace fastsft {

void experts_forward(const BlockContext& context, const BlockRefs& refs,
                     const PlaceWeights& weights, const BlockActivations& a,
                     const at::Tensor& out) {
  mixture_forward(context.config, mixture_weights(context.config, refs, weights), a.mlp_norm_out,
                  a.mixture, a.attn_residual, out);
}

void experts_backward(const BlockContext& context, const BlockRefs& refs,
                      const PlaceWeights& weights, const BlockActivations& a,
                      const at::Tensor& grad, UnitGradient* gradient) {
  const ModelConfig& c = context.config;
  const ParamRef& norm = refs.post_norm;
  const MixtureWeights experts = mixture_weights(c, refs, weights);
  // 1. What forward did not keep; the norm's output is there
  if (context.recompute == Recompute::kBlock) route(c, experts, a.mlp_norm_out, a.mixture);
  if (context.recompute == Recompute::kBlock || context.recompute == Recompute::kGateUp)
    recompute_gate_up(experts, a.mlp_norm_out, a.mixture);
  // 2. The experts and the router, then the norm before them
  const MixtureGradients into{.grad_weights = context.buffers.get(Buffer::kGradRoutingWeights),
                              .grad_logits = context.buffers.get(Buffer::kGradRouterLogits),
                              .grad_x = context.buffers.get(Buffer::kGradNormed)};
  mixture_backward(c, refs, experts, a.mlp_norm_out, a.mixture, grad, into, gradient);
  rms_norm_backward(into.grad_x, a.attn_residual, norm.view(weights), a.mlp_norm_rstd, grad,
                    norm.gradient(gradient), norm.begin_write(gradient), /*recompute=*/false,
                    c.norm_offset);
}

}  // namespace fastsft
