#pragma once

#include <ATen/core/Tensor.h>

#include "model/layout.h"
#include "shard/unit_gradient.h"

namespace fastsft {

// Of the adapters of one group, with `products` [tokens, ranks] = scale * x A^T. Nothing here does
// anything where the group has none.

// Fills `products` from x [tokens, inputs]. With dropout every adapter reads x with a mask of its
// own; without it one product reads x once.
void adapter_products(const AdapterRefs& refs, const PlaceWeights& weights,
                      const AdapterDropout& dropout, const at::Tensor& x,
                      const at::Tensor& products);
// y += products B^T; y [tokens, columns of the group].
void add_adapters(const AdapterRefs& refs, const PlaceWeights& weights, const at::Tensor& products,
                  const at::Tensor& y);
// From grad_y = d loss / d y: the gradients of A and B into the unit's, and `grad_products`
// [tokens, ranks] = d loss / d (x A^T).
void adapter_weights_backward(const AdapterRefs& refs, const PlaceWeights& weights,
                              const AdapterDropout& dropout, const at::Tensor& x,
                              const at::Tensor& products, const at::Tensor& grad_y,
                              const at::Tensor& grad_products, UnitGradient* gradient);
// The part of it after B: scales `grad_products`, which is d loss / d products, and makes A's.
void adapter_a_backward(const AdapterRefs& refs, const AdapterDropout& dropout, const at::Tensor& x,
                        const at::Tensor& grad_products, UnitGradient* gradient);
// grad_x += grad_products A.
void adapter_input_backward(const AdapterRefs& refs, const PlaceWeights& weights,
                            const AdapterDropout& dropout, const at::Tensor& grad_products,
                            const at::Tensor& grad_x);

}  // namespace fastsft
