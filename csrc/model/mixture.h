#pragma once

#include <ATen/core/Tensor.h>

#include "model/activation_buffers.h"
#include "model/config.h"
#include "model/layout.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// The MLP of a mixture of experts:
//   out = residual + sum over a token's chosen experts of weight * swiglu(x Wgu_e^T) Wd_e^T
// with weights and choice from the router's logits x Wr^T (ops/routing/routing.h). The rows of all
// pairs of a token and an expert are grouped by expert, so that each projection is one product.

// The activations of a mixture. Backward needs all but `grouped` and `activated`, which it
// overwrites.
struct MixtureActivations {
  at::Tensor logits;          // [tokens, experts]
  at::Tensor weights;         // [tokens, chosen]
  at::Tensor chosen_experts;  // [tokens, chosen] int32
  at::Tensor offsets;         // [experts + 1] int32
  at::Tensor pairs, rows;     // [tokens * chosen], [tokens, chosen] int32
  at::Tensor grouped;         // [tokens * chosen, hidden], temporary
  at::Tensor gate_up;         // [tokens * chosen, 2 * intermediate]; backward overwrites it
  at::Tensor activated;       // [tokens * chosen, intermediate], temporary
};

// Returns a layer's buffers; undefined tensors if the model is no mixture.
MixtureActivations mixture_activations(const ModelConfig& config, ActivationBuffers& buffers,
                                       int64_t layer);

// A layer's matrices: router [experts, hidden], gate_up [experts, 2 * intermediate, hidden] and
// down [experts, hidden, intermediate].
struct MixtureWeights {
  at::Tensor router, gate_up, down;
};
MixtureWeights mixture_weights(const ModelConfig& config, const BlockRefs& refs,
                               const PlaceWeights& weights);

// Computes `out` from x [tokens, hidden], the normalized hidden states.
void mixture_forward(const ModelConfig& config, const MixtureWeights& weights, const at::Tensor& x,
                     const MixtureActivations& a, const at::Tensor& residual,
                     const at::Tensor& out);
// Computes each token's experts and their weights, and the rows of each expert.
void route(const ModelConfig& config, const MixtureWeights& weights, const at::Tensor& x,
           const MixtureActivations& a);
// Computes a.gate_up from the routing.
void recompute_gate_up(const MixtureWeights& weights, const at::Tensor& x,
                       const MixtureActivations& a);

// Computes grad_x from grad = d loss / d out, and adds the gradients of trained weights to
// `gradient`, which is null if nothing of the layer is trained.
//   grad_weights [tokens, chosen] float32 and grad_logits [tokens, experts] are temporary.
struct MixtureGradients {
  at::Tensor grad_weights, grad_logits, grad_x;
};
void mixture_backward(const ModelConfig& config, const BlockRefs& refs,
                      const MixtureWeights& weights, const at::Tensor& x,
                      const MixtureActivations& a, const at::Tensor& grad,
                      const MixtureGradients& gradients, UnitGradient* gradient);

}  // namespace fastsft
