#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/decoder_block.h"
#include "model/layout.h"
#include "model/product_input.h"

namespace fastsft {

// The products of a block's linear layers with their weights W, in the compute dtype or, if
// `refs.in_fp8`, in 8-bit floats. The arguments of the constructor outlive the object.
class LinearProducts {
 public:
  LinearProducts(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights)
      : context_(context), refs_(refs), weights_(weights) {}

  // y = x W^T
  void forward(const ProductInput& x, const ParamRef& ref, const at::Tensor& y) const;
  // y = x W^T + addend, which may be y
  void forward_add(const ProductInput& x, const ParamRef& ref, const at::Tensor& addend,
                   const at::Tensor& y) const;
  // grad_x = grad_y W
  void backward(const at::Tensor& grad_y, const ParamRef& ref, const at::Tensor& grad_x) const;
  // Adds grad_y^T x to the gradient of W, unless W is frozen.
  void accumulate(UnitGradient* gradient, const ParamRef& ref, const at::Tensor& grad_y,
                  const at::Tensor& x) const;

 private:
  void multiply(const ProductInput& x, const ParamRef& ref, const std::optional<at::Tensor>& addend,
                const at::Tensor& y) const;
  // Return a weight in 8 bits: the kept one, or one that the next product's overwrites.
  Fp8Matrix forward_weight(const ParamRef& ref) const;
  Fp8Matrix backward_weight(const ParamRef& ref) const;

  const BlockContext& context_;
  const BlockRefs& refs_;
  const PlaceWeights& weights_;
};

// Accumulate the gradient of a weight used as y = x W^T, or of a bias that is added to y. They do
// nothing for frozen parameters.
void accumulate(UnitGradient* gradient, const ParamRef& ref, const at::Tensor& grad_y,
                const at::Tensor& x);
void accumulate(UnitGradient* gradient, const std::optional<ParamRef>& bias,
                const at::Tensor& grad_y);

}  // namespace fastsft
