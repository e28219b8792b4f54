#pragma once

#include <ATen/core/Tensor.h>

namespace fastsft {

// Matrix products of groups of rows, each with its own matrix. `offsets` [experts + 1] int32, on
// the same device: group e has the rows [offsets[e], offsets[e + 1]), and offsets cover all rows.
// Tensors are contiguous, float32, bfloat16 or float16; sums are float32 and rounded once.

// out = x W_e^T if `transpose`, else x W_e, for the rows of each group e.
//   x [rows, inputs], weights [experts, outputs, inputs] (not transposed: [experts, inputs,
//   outputs]), out [rows, outputs].
void grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets,
                  const at::Tensor& out, bool transpose);

// grad_weights[e] = beta * grad_weights[e] + grad_y_e^T x_e, with the rows of group e.
//   grad_y [rows, outputs], x [rows, inputs], grad_weights [experts, outputs, inputs] float32 or
//   bfloat16 if x is. If beta is 0, the old content is ignored; a group without rows gives beta
//   times the old content.
void grouped_weight_gradient(const at::Tensor& grad_y, const at::Tensor& x,
                             const at::Tensor& offsets, const at::Tensor& grad_weights,
                             double beta);

void check_grouped_gemm(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& offsets,
                        const at::Tensor& out, bool transpose);
void check_grouped_weight_gradient(const at::Tensor& grad_y, const at::Tensor& x,
                                   const at::Tensor& offsets, const at::Tensor& grad_weights,
                                   double beta);

}  // namespace fastsft
