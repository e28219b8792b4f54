#pragma once

#include <ATen/core/Tensor.h>

#include "model/layout.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Forward and backward of a group's adapters, with `products` [tokens, ranks] = scale * x A^T. All
// functions are no-ops for a group without adapters.

// Fills `products` from x [tokens, inputs]. With dropout every adapter reads x with its own mask;
// without dropout one GEMM computes all adapters.
void adapter_products(const AdapterRefs& refs, const PlaceWeights& weights,
                      const AdapterDropout& dropout, const at::Tensor& x,
                      const at::Tensor& products);
// Adds products B^T to y [tokens, the group's columns].
void add_adapters(const AdapterRefs& refs, const PlaceWeights& weights, const at::Tensor& products,
                  const at::Tensor& y);
// Computes, from grad_y = d loss / d y, the gradients of A and B in the unit's gradient, and
// `grad_products` [tokens, ranks] = d loss / d (x A^T).
void adapter_weights_backward(const AdapterRefs& refs, const PlaceWeights& weights,
                              const AdapterDropout& dropout, const at::Tensor& x,
                              const at::Tensor& products, const at::Tensor& grad_y,
                              const at::Tensor& grad_products, UnitGradient* gradient);
// Computes only A's gradient. Scales `grad_products`, which must be d loss / d products.
void adapter_a_backward(const AdapterRefs& refs, const AdapterDropout& dropout, const at::Tensor& x,
                        const at::Tensor& grad_products, UnitGradient* gradient);
// Adds grad_products A to grad_x.
void adapter_input_backward(const AdapterRefs& refs, const PlaceWeights& weights,
                            const AdapterDropout& dropout, const at::Tensor& grad_products,
                            const at::Tensor& grad_x);

}  // namespace fastsft
