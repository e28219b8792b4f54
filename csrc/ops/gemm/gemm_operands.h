#pragma once

#include <ATen/core/Tensor.h>

#include "ops/gemm/gemm_key.h"

namespace fastsft::cuda {

// The key of out = op(a) op(b) + beta * out for checked operands of at least one element each.
// `tf32` counts for float32 operands only.
GemmKey gemm_key(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool transpose_a,
                 bool transpose_b, double beta, bool tf32);

// The tensor itself when its rows are at least a row apart, otherwise (expanded) a copy.
at::Tensor with_separate_rows(const at::Tensor& matrix);

}  // namespace fastsft::cuda
