#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/config.h"
#include "shard/state_options.h"

namespace fastsft {

// A block's linear layers in 8-bit floats: both operands of y = x W^T and of grad_x = grad_y W are
// quantised with the amax of this moment (ops/fp8/fp8.h). x and W are e4m3, grad_y is e4m3 or, in
// the hybrid format, e5m2. The weight gradient is a product of the operands before quantisation or,
// with `wgrad`, of operands in 8 bits.
//   kTensorwise: a scale for x, W and grad_y each.
//   kRowwise: a scale for each token of x and grad_y, and for each row of W in forward. Backward
//   adds over the rows of W, so there W has one scale. With `wgrad` it has one for each column, and
//   so have x and grad_y in the weight gradient. Scales are powers of two.
// Forward accumulates fast (ops/gemm/scaled_gemm.h), backward does not.
// kRowwise is torchao's recipe "rowwise_with_gw_hp", with `wgrad` its "rowwise". kTensorwise is its
// "tensorwise", but for the weight gradient without `wgrad`.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kNone;
  Fp8Format format = Fp8Format::kE4m3;
  bool wgrad = false;
  int64_t first_layer = 0, end_layer = 0;  // the blocks in 8 bits

  // Throws std::invalid_argument unless linear layers have sizes that cuBLASLt multiplies, and if
  // no block is left for fp8.
  static Fp8Recipe of(const StateOptions& state, const ModelConfig& config);
  bool is_used() const { return scaling != Fp8Scaling::kNone; }
  bool rowwise() const { return scaling == Fp8Scaling::kRowwise; }
  bool hybrid() const { return format == Fp8Format::kHybrid; }
  bool has_layer(int64_t layer) const { return layer >= first_layer && layer < end_layer; }
};

inline constexpr const char* kNoGenericFp8 =
    "--fp8: expected a model that the native engine computes, got one of the generic engine, whose "
    "products are transformers'; train without --fp8";

// A quantised matrix, and a scale for each of its rows.
struct Fp8Matrix {
  at::Tensor values, scales;
};

// Memory for a quantised matrix, flat.
struct Fp8Memory {
  at::Tensor values, scales;  // bytes and float32

  Fp8Matrix matrix(int64_t rows, int64_t columns, bool e5m2 = false) const;
};

// Quantise W [outputs, inputs], which is bfloat16: for forward to `out` [outputs, inputs], for
// backward to its transpose.
void fp8_forward_weight(const Fp8Recipe& recipe, const at::Tensor& weight, const Fp8Matrix& out);
void fp8_backward_weight(const Fp8Recipe& recipe, const at::Tensor& weight, const Fp8Matrix& out);

// Quantises x [tokens, inputs], which is bfloat16, for fp8_product.
Fp8Matrix fp8_input(const Fp8Recipe& recipe, const Fp8Memory& memory, const at::Tensor& x);
// out = x W^T, plus `addend` if there is one, which may be `out`. `weight` is from
// fp8_forward_weight.
void fp8_product(const Fp8Recipe& recipe, const Fp8Matrix& x, const Fp8Matrix& weight,
                 const std::optional<at::Tensor>& addend, const at::Tensor& out);
// grad_x = grad_y W. `weight` is from fp8_backward_weight, `memory` is for grad_y.
void fp8_product_backward(const Fp8Recipe& recipe, const Fp8Memory& memory,
                          const at::Tensor& grad_y, const Fp8Matrix& weight,
                          const at::Tensor& grad_x);
// grad_w = grad_y^T x + beta * grad_w, float32 or bfloat16. `of_grad` and `of_x` are for the
// transposed operands, whose rows have `fp8_padded(tokens)` elements.
void fp8_weight_gradient(const Fp8Recipe& recipe, const Fp8Memory& of_grad, const Fp8Memory& of_x,
                         const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& grad_w,
                         double beta);
// Rounds the token count up to a multiple of kScaledGemmMultiple; the added tokens are zeros.
int64_t fp8_padded(int64_t tokens);

}  // namespace fastsft
