#include "model/mixture.h"

#include <optional>

#include "ops/expert_rows/expert_rows.h"
#include "ops/gemm/gemm.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/routing/routing.h"
#include "ops/swiglu/swiglu.h"

namespace fastsft {
namespace {

// Adds the gradient of `matrix`, used as y_e = x_e W_e^T.
void accumulate(UnitGradient* gradient, const ParamRef& matrix, const at::Tensor& weights,
                const at::Tensor& offsets, const at::Tensor& grad_y, const at::Tensor& x) {
  if (!matrix.trained) return;
  grouped_weight_gradient(grad_y, x, offsets, matrix.view(*gradient).view(weights.sizes()),
                          matrix.begin_write(gradient));
}

}  // namespace

MixtureActivations mixture_activations(const ModelConfig& config, ActivationBuffers& buffers,
                                       int64_t layer) {
  if (!config.is_mixture()) return {};
  return {.logits = buffers.get(Buffer::kRouterLogits, layer),
          .weights = buffers.get(Buffer::kRoutingWeights, layer),
          .chosen_experts = buffers.get(Buffer::kChosenExperts, layer),
          .offsets = buffers.get(Buffer::kExpertOffsets, layer),
          .pairs = buffers.get(Buffer::kExpertPairs, layer),
          .rows = buffers.get(Buffer::kExpertRows, layer),
          .grouped = buffers.get(Buffer::kGrouped),
          .gate_up = buffers.get(Buffer::kGateUp, layer),
          .activated = buffers.get(Buffer::kActivated, layer)};
}

MixtureWeights mixture_weights(const ModelConfig& c, const BlockRefs& refs,
                               const PlaceWeights& weights) {
  const int64_t experts = c.mixture.experts, inner = c.intermediate_size, hidden = c.hidden_size;
  return {.router = refs.router->view(weights),
          .gate_up = refs.gate_up.view(weights).view({experts, 2 * inner, hidden}),
          .down = refs.down.view(weights).view({experts, hidden, inner})};
}

void mixture_forward(const ModelConfig& c, const MixtureWeights& weights, const at::Tensor& x,
                     const MixtureActivations& a, const at::Tensor& residual,
                     const at::Tensor& out) {
  // 1. Routing
  route(c, weights, x, a);
  // 2. gate_up = x_e Wgu_e^T, activated = silu(gate) * up
  recompute_gate_up(weights, x, a);
  swiglu(a.gate_up, a.activated);
  // 3. Down projection, and the sum of each token's experts
  grouped_gemm(a.activated, weights.down, a.offsets, a.grouped, /*transpose=*/true);
  combine_rows(a.grouped, a.rows, a.weights, residual, out);
}

void route(const ModelConfig& c, const MixtureWeights& weights, const at::Tensor& x,
           const MixtureActivations& a) {
  gemm(x, weights.router, a.logits, false, true, 0.0);
  route_tokens(a.logits, a.weights, a.chosen_experts, c.mixture.normalized);
  group_pairs(a.chosen_experts, a.offsets, a.pairs, a.rows);
}

void recompute_gate_up(const MixtureWeights& weights, const at::Tensor& x,
                       const MixtureActivations& a) {
  gather_rows(x, a.pairs, a.grouped);
  grouped_gemm(a.grouped, weights.gate_up, a.offsets, a.gate_up, /*transpose=*/true);
}

void mixture_backward(const ModelConfig& c, const BlockRefs& refs, const MixtureWeights& weights,
                      const at::Tensor& x, const MixtureActivations& a, const at::Tensor& grad,
                      const MixtureGradients& gradients, UnitGradient* gradient) {
  // 1. Down projection and SwiGLU. With g = grad_e Wd_e, the gradient of an expert's weight is the
  // dot product of g and `activated`, so the forward's result is not needed.
  gather_rows(grad, a.pairs, a.grouped);
  grouped_gemm(a.grouped, weights.down, a.offsets, a.activated, /*transpose=*/false);
  expert_swiglu_backward(a.activated, a.gate_up, a.weights, a.pairs, gradients.grad_weights);
  accumulate(gradient, refs.down, weights.down, a.offsets, a.grouped, a.activated);
  // 2. Gate and up projection; gate_up holds its gradient by now
  if (refs.gate_up.trained) gather_rows(x, a.pairs, a.grouped);
  accumulate(gradient, refs.gate_up, weights.gate_up, a.offsets, a.gate_up, a.grouped);
  grouped_gemm(a.gate_up, weights.gate_up, a.offsets, a.grouped, /*transpose=*/false);
  // 3. Router
  route_tokens_backward(gradients.grad_weights, a.logits, a.chosen_experts, gradients.grad_logits,
                        c.mixture.normalized);
  if (refs.router->trained) {
    gemm(gradients.grad_logits, x, refs.router->view(*gradient), true, false,
         refs.router->begin_write(gradient));
  }
  gemm(gradients.grad_logits, weights.router, gradients.grad_x, false, false, 0.0);
  // 4. Each token's sum over its experts
  combine_rows(a.grouped, a.rows, std::nullopt, gradients.grad_x, gradients.grad_x);
}

}  // namespace fastsft
