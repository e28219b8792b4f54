#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "model/decoder_block.h"

namespace fastsft {

// The input of a linear layer. The op that computed it may have quantised it already; then `values`
// may be undefined.
struct ProductInput {
  ProductInput(at::Tensor values, std::optional<Fp8Matrix> quantised = std::nullopt)
      : values(std::move(values)), quantised(std::move(quantised)) {}

  at::Tensor values;
  std::optional<Fp8Matrix> quantised;
};

// Compute the inputs of a block's linear layers, and quantise them in the same kernel if these
// layers read 8 bits with a scale for each row. A scale for the matrix is known too late. A
// quantised input stays until the next product or the next input.
class ProductInputs {
 public:
  ProductInputs(const BlockContext& context, const BlockRefs& refs, const PlaceWeights& weights)
      : context_(context), refs_(refs), weights_(weights) {}

  // out = rms_norm(x), or with `residual`, sum = x + residual and out = rms_norm(sum)
  // (ops/rms_norm/rms_norm.h). A quantised `out` is undefined without `keep`.
  ProductInput norm(const at::Tensor& x, const std::optional<at::Tensor>& residual,
                    const ParamRef& weight, const std::optional<at::Tensor>& sum,
                    const at::Tensor& out, const at::Tensor& rstd, bool keep) const;
  ProductInput norm(const at::Tensor& x, const ParamRef& weight, const at::Tensor& out,
                    const at::Tensor& rstd, bool keep) const {
    return norm(x, std::nullopt, weight, std::nullopt, out, rstd, keep);
  }
  // out = silu(gate) * up (ops/swiglu/swiglu.h)
  ProductInput swiglu(const at::Tensor& gate_up, const at::Tensor& out, bool keep) const;

 private:
  std::optional<Fp8Matrix> memory_for(const at::Tensor& out) const;

  const BlockContext& context_;
  const BlockRefs& refs_;
  const PlaceWeights& weights_;
};

// Returns the memory of the input or output gradient that a product reads.
Fp8Memory fp8_row_memory(ActivationBuffers& buffers);

}  // namespace fastsft
